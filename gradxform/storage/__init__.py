"""Forms in which a state keeps an array; `gradxform.wrappers.storage` chooses them."""

from gradxform.storage.blocks import BlockForm as BlockForm, Blocks as Blocks
from gradxform.storage.codes import (
    CODES as CODES,
    Code as Code,
    DynamicCode as DynamicCode,
    Float8Code as Float8Code,
    FloatCode as FloatCode,
    code_named as code_named,
)
from gradxform.storage.parameters import (
    Chance as Chance,
    Compensated as Compensated,
    Master as Master,
    NarrowForm as NarrowForm,
    Remainder as Remainder,
)
from gradxform.storage.rounded import Rounded as Rounded
from gradxform.storage.stored import StoredArray as StoredArray, is_stored as is_stored
