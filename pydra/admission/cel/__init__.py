"""The types of configs as CEL, for clusters that want no webhook: a ValidatingAdmissionPolicy."""
