"""ResourceSlices: from a pool to the objects in the API, with as few writes as can be."""
