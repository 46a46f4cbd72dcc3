"""Golden executor, instruction interpreter, cycle simulator, memory model, co-simulation, energy."""
