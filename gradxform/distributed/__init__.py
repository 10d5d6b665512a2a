"""Code that names a mesh axis, a replica or a sharding."""
