package main

import (
	"fmt"
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// figure is a plot in a file.
type figure struct {
	file, title string
	*plot.Plot
}

func (f figure) save(dir string) error {
	f.Title.Text = f.title
	f.BackgroundColor = color.White // also where a page is dark
	return f.Save(16*vg.Centimeter, 10*vg.Centimeter, filepath.Join(dir, f.file))
}

// plots are those for which there are tables.
func (b *bench) plots() []figure {
	var all []figure
	for _, t := range b.tables {
		switch {
		case len(t.rows) == 0:
		case t.part == "growth":
			all = append(all, growthPlot(t))
		case t.part == "clients":
			all = append(all, clientsPlot(t))
		case t.part == "publish":
			all = append(all, layersPlot(t))
		}
	}
	return all
}

// growthPlot has a line by driver, over the number of mounts.
func growthPlot(t *table) figure {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "mounts in the directory", "pairs of publish and unpublish per second"
	logarithmic(p)
	for k, r := range t.rows {
		var points plotter.XYs
		for i, c := range r.cells {
			var mounts float64
			_, _ = fmt.Sscan(t.ways[i], &mounts)
			points = append(points, plotter.XY{X: mounts, Y: 1e6 / c.micros})
		}
		line(p, k, r.name, points)
	}
	return figure{"mounts.svg", "Speed against mounts, 1 client", p}
}

// clientsPlot has a line by driver, over the number of clients.
func clientsPlot(t *table) figure {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "clients", "pairs of publish and unpublish per second"
	logarithmic(p)
	for i, name := range t.ways {
		var points plotter.XYs
		for _, r := range t.rows {
			points = append(points, plotter.XY{X: r.x, Y: 1e6 / r.cells[i].micros})
		}
		line(p, i, name, points)
	}
	return figure{"clients.svg", "Speed against clients, 10 mounts", p}
}

// layersPlot has what each layer adds to the limit, of the first row. mount-utils is no layer,
// and as high as ten of them.
func layersPlot(t *table) figure {
	p := plot.New()
	p.Y.Label.Text = "µs per pair"
	p.Y.Min = 0
	var values plotter.Values
	var names []string
	for i, name := range t.ways {
		if name != utilsDriver {
			values, names = append(values, t.rows[0].cells[i].micros), append(names, name)
		}
	}
	if bars, err := plotter.NewBarChart(values, vg.Points(50)); err == nil {
		bars.Color = plotutil.Color(2)
		p.Add(bars)
	}
	p.NominalX(names...)
	return figure{"layers.svg", "Cost by layer, " + t.rows[0].name, p}
}

func line(p *plot.Plot, i int, name string, points plotter.XYs) {
	lines, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return
	}
	lines.Color, dots.Color, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(lines, dots)
	p.Legend.Add(name, lines, dots)
}

func logarithmic(p *plot.Plot) {
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	p.Legend.Left = true
	p.Legend.YOffs = vg.Centimeter
}
