"""The paper: pairing, masks, mixing and the weighted loss. Read types, pairing, masks, mixer, loss, in this order."""
