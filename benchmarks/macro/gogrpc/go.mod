module tidegate/benchmarks/gogrpc

go 1.24

require golang.org/x/net v0.43.0

require golang.org/x/text v0.28.0 // indirect
