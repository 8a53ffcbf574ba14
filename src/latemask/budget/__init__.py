"""What a run costs: FLOPs, memory, hours, energy, from what objectives and families say of themselves. No torch."""
