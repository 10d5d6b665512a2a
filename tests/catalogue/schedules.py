"""Rows for `gradxform/schedules/`."""

REFUSED = [
    ("product_schedule()", ValueError, "product_schedule: needs at least one factor."),
    ("product_schedule(FALLING, scale(1.0))",
     TypeError, "product_schedule: factor 1 must be a schedule"),
]  # fmt: skip
