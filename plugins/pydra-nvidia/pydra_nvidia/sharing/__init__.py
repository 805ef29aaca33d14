"""How the processes of a claim share its devices: time slices, and MPS with a control daemon of the claim's own."""
