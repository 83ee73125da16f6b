"""Where correction memories are kept between runs and shared between replicas."""
