"""The laws: what must hold for every input, told against models that share no code with it."""
