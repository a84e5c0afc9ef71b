"""The gguf package's reader without the vocabulary.

The package makes several NumPy arrays for every token and merge rule: 3 s for 49,000 tokens, more than 10 s for the
vocabularies of Llama 3 and Qwen. Nothing that describes a model's shape lies in a list, so lists are stepped over.
"""

import struct
from typing import Any

from gguf import GGUFReader, GGUFValueType
from numpy.typing import NDArray


class HeaderReader(GGUFReader):
    """Reads metadata and the tensor directory; a list reads as empty.

    Raises:
        struct.error: the file ends within a list; whatever else is wrong raises as in the package's reader.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]:
        swapped = self.byte_order != "I"
        if swapped or raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        view = self.data.data
        raw_item, count = struct.unpack_from("=IQ", view, orig_offs)
        item = GGUFValueType(raw_item)
        end = orig_offs + struct.calcsize("=IQ")
        if item == GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("=Q", view, end)[0]
        elif item in self.gguf_scalar_to_np:
            end += count * self.gguf_scalar_to_np[item]().itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [], [], [GGUFValueType.ARRAY, item]
