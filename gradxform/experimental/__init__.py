"""What Optax calls experimental: `aggregating`. Names and forms may change with Optax's."""

from gradxform.experimental import aggregating as aggregating
