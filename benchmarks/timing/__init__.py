"""How something is measured: interleaved calls, compiled steps in turns, and the machine."""
