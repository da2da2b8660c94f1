"""ROCm's build depends on a file of this name; kpack reads compressed offload bundles itself."""
