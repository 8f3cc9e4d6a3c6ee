"""Find the slots of new tokens within the pages allocated for them: plain numpy.

The engine's allocators keep their indices on the host, so they use this form on every device.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]


def alloc_extend(
    prefix_lens: _Ints,
    seq_lens: _Ints,
    last_loc: _Ints,
    pages: _Ints,
    page_size: int,
    extend_num_tokens: int,
) -> _Ints:
    """Return the slots of positions prefix_len to seq_len (exclusive), request after request.

    Each request first fills the page of its last token, then takes new pages in order.

    Args:
        prefix_lens, seq_lens: [B], lengths before and after.
        last_loc: [B], slot of each request's position prefix_len - 1; ignored if there is none.
        pages: at least as many as the requests need in total.
        page_size: tokens of a page.
        extend_num_tokens: sum of the differences of the lengths, at least 1.

    Returns:
        [extend_num_tokens] int64.
    """
    lengths = seq_lens - prefix_lens
    # The position of each token in its request.
    segment_start = np.cumsum(lengths) - lengths
    position = np.arange(extend_num_tokens) + np.repeat(prefix_lens - segment_start, lengths)
    continued: _Ints = position + np.repeat(last_loc + 1 - prefix_lens, lengths)
    if len(pages) == 0:
        return continued
    first_new_page = (prefix_lens + (page_size - 1)) // page_size
    new_pages = (seq_lens + (page_size - 1)) // page_size - first_new_page
    page_base = np.cumsum(new_pages) - new_pages - first_new_page
    page, offset = np.divmod(position, page_size)
    locations: _Ints = pages[page + np.repeat(page_base, lengths)] * page_size + offset
    in_old_page = position < np.repeat(first_new_page * page_size, lengths)
    np.copyto(locations, continued, where=in_old_page)
    return locations


def alloc_decode(
    begins_page: NDArray[np.bool_], last_loc: _Ints, pages: _Ints, page_size: int
) -> _Ints:
    """Return the slot of each request's newest token: the next one, or the first of a new page.

    Args:
        begins_page: [B], whether that token begins a page.
        last_loc: [B], slot of the previous token; ignored if there is none.
        pages: one for each request that begins a page.
        page_size: tokens of a page.

    Returns:
        [B] int64.
    """
    locations: _Ints = last_loc + 1
    locations[begins_page] = pages * page_size
    return locations
