// Package csispec holds the rules of the Container Storage Interface v1.13 as
// data, for plugins and for tests of plugins.
//
//   - [Validate] reports every rule that a message breaks, in one error that
//     carries the gRPC status the specification asks for.
//   - [Redact] makes a message fit for a log: secrets, service-account tokens
//     and credentials in mount flags are masked, and nothing is computed unless
//     the message is printed.
//   - [CheckCapabilities] finds capabilities that contradict each other, at
//     start-up instead of in the first call that trips over them, and
//     [CapabilityWarnings] those that no CO will use.
//   - [MetadataStream] and [History] judge what takes more than one message: a
//     stream of the SnapshotMetadata service, and what must not change between
//     the answers of a plugin.
//
// What holds for single fields is generated from csi.proto of the spec module,
// by options and by the sentences of its comments; rules of several fields are
// written by hand.
//
// # When not to use it
//
// The package knows what the specification says about messages. It does not
// know volumes: whether one exists, fits or is published elsewhere is the
// driver's to answer. A driver that uses csiserver gets Validate and Redact
// around every call and needs this package only for their options.
//
// # Concurrency, privileges, kernel
//
// All functions are pure and safe for concurrent use as long as nobody changes
// the message meanwhile; so is a History, but not a MetadataStream. No privileges
// and no particular kernel are needed.
package csispec

//go:generate go -C ../hack/genspec run .
