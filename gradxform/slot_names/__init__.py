"""The slots of a state by name: under our names, or TensorFlow 1's, Keras 2's or Keras 3's."""

from gradxform.slot_names.access import get_slots as get_slots, set_slots as set_slots
