package crash

// legacyKinds is empty: arm64 never had the calls that the *at family replaced.
var legacyKinds map[uint64]kind
