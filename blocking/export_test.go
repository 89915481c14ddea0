package blocking

func HoldsMap(g *Group) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls != nil || g.own.parked != 0
}
