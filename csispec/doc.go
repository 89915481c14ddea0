// Package csispec implements the rules of the Container Storage Interface v1.13 for
// messages, for plugins and for tests of plugins.
//
//   - [Validate] reports every rule that a message breaks, in one error that
//     carries the gRPC status which the specification requires.
//   - [Redact] renders a message for a log: secrets, service-account tokens
//     and credentials in mount flags are masked, and nothing is computed unless
//     the message is printed.
//   - [CheckCapabilities] finds capabilities that contradict the specification at start-up,
//     and [CapabilityWarnings] those that are allowed but probably unintended.
//   - [MetadataStream] and [History] validate several messages together: a
//     stream of the SnapshotMetadata service, and values that must not change
//     between the responses of a plugin.
//   - [RoundCapacity], [VolumeUsage], [ControllerCapabilities], [GroupControllerCapabilities],
//     [NodeCapabilities] and [IsSinglePublish] compute parts of messages that every driver
//     needs.
//   - [IsKubernetesKey] and constants such as [ParameterPVCName] and [VolumeContextEphemeral]
//     are the keys that Kubernetes adds to parameters and volume_context.
//
// Rules for single fields are generated from csi.proto of the spec module,
// from its options and the sentences of its comments; rules for several fields are
// written by hand.
//
// # When not to use it
//
// The package validates messages only. Whether a volume exists, fits or is published
// elsewhere is checked by the driver. A driver that uses csiserver gets Validate and Redact
// around every call and needs this package only for their options and for the helpers.
//
// # Concurrency, privileges, kernel
//
// All functions are pure and safe for concurrent use as long as the message is not
// changed meanwhile; a History is safe for concurrent use, a MetadataStream is not. No
// privileges and no particular kernel are needed.
package csispec

//go:generate go -C ../hack/genspec run .
