// Package fastmount tests nodeops/fastmount: beside mount-utils on the same kernel, and
// compiled in the modules of drivers. It is a module of its own because fastmount's must
// not require the root module, not even for tests.
package fastmount
