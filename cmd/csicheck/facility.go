package main

import "github.com/csikit/csikit/csitest"

// flags are the flags that provide what a rule needs beside the driver's capabilities.
var flags = map[csitest.Facility]string{
	csitest.FacilityControllerEndpoint: "-controller-endpoint",
	csitest.FacilityDir:                "-dir",
	csitest.FacilityInventory:          "-inventory",
	csitest.FacilityKernel:             "-kernel",
	csitest.FacilityLocalSocket:        "-endpoint unix:///…",
	csitest.FacilityLog:                "-start or -log",
	csitest.FacilityMutableParameters:  "-mutable-parameters",
	csitest.FacilityOtherRules:         "-rules with others, such as controller.",
	csitest.FacilityRestart:            "-start or -restart",
	csitest.FacilitySecrets:            "-secrets",
	csitest.FacilitySecondNode:         "-second-node",
	csitest.FacilitySecondTopology:     "-second-topology",
}
