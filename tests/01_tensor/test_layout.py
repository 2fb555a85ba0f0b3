"""`Layout`: NumPy's own slicing, transposing and reshaping is the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_tensor import InvalidInputError
from aie_tensor.layout import Layout

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
AXIS = st.one_of(st.none(), st.integers(-6, 6))
SLICES = st.builds(slice, AXIS, AXIS, st.sampled_from([None, 1, 2, 3, -1, -2]))


def layout_and_array(shape):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    return Layout.contiguous(shape, 4), array


def seen(layout, array):
    """What the layout reads of the array's bytes."""
    flat = np.frombuffer(array.tobytes(), np.uint8)
    return np.ndarray(layout.shape, np.int32, flat, layout.offset, layout.strides)


@st.composite
def views(draw):
    """A layout and the array that NumPy makes by the same steps, and the array under both."""
    layout, root = layout_and_array(draw(SHAPES))
    array = root
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            axes = tuple(draw(st.permutations(range(array.ndim))))
            layout, array = layout.transpose(axes), array.transpose(axes)
        else:
            index = tuple(draw(SLICES) for _ in range(draw(st.integers(0, array.ndim))))
            layout, array = layout.pick(index), array[(*index, ...)]
    return layout, array, root


@given(views())
def test_views_of_views_read_the_same_elements(view):
    layout, array, root = view
    assert layout.shape == array.shape
    assert seen(layout, root).tolist() == array.tolist()
    assert layout.is_contiguous == array.flags.c_contiguous
    if array.size:
        strides = [(a, b) for n, a, b in zip(array.shape, array.strides, layout.strides, strict=True) if n > 1]
        assert all(a == b for a, b in strides)


@given(views(), st.data())
def test_reshape_succeeds_exactly_where_numpy_copies_nothing(view, data):
    layout, array, root = view
    shape, left = [], array.size
    while left > 1 or (left and len(shape) < 4 and data.draw(st.booleans())):
        shape.append(data.draw(st.sampled_from([n for n in range(1 + (len(shape) > 3), left + 1) if left % n == 0])))
        left //= shape[-1]
    shape = (*shape, 0) if left == 0 else tuple(shape)
    wanted = array.reshape(shape)
    try:
        reshaped = layout.reshape(shape)
    except InvalidInputError as error:
        assert "would need a copy" in str(error)
        assert array.size and not np.may_share_memory(array, wanted)
    else:
        assert seen(reshaped, root).tolist() == wanted.tolist()
        assert not array.size or np.may_share_memory(array, wanted)


@given(views())
def test_runs_cover_every_element_once_and_in_order(view):
    layout, array, root = view
    if array.size == 0:
        return
    flat = root.reshape(-1)
    read = []
    for offset in layout.offsets(layout.run_length):
        first = (layout.offset + offset) // 4
        read += flat[first : first + layout.run_length].tolist()
    assert read == array.reshape(-1).tolist()


@pytest.mark.parametrize("index", [0, -1, (1, 2), (..., 1), (0, ...), (slice(None, None, -1), 1), (0, slice(9, 1))])
def test_integers_and_ellipsis(index):
    layout, array = layout_and_array((2, 3, 4))
    assert seen(layout.pick(index), array).tolist() == array[index].tolist()


def test_whole_numbers_of_numpy_are_integers():
    layout, array = layout_and_array((2, 3))
    assert layout.pick(np.int64(1)).offset == array[1:].__array_interface__["data"][0] - array.ctypes.data
    assert Layout.contiguous((np.int32(2), 3), 4) == layout


@pytest.mark.parametrize("index", [2, -3, (0, 3), (0, 0, 0)])
def test_beyond_the_end_is_an_index_error(index):
    with pytest.raises(IndexError):
        Layout.contiguous((2, 3), 4).pick(index)


@pytest.mark.parametrize(
    "index", [True, 1.0, "a", None, [0, 1], np.array([0, 1]), np.array(True), slice(0, 2, 0), slice("a"), (..., ...)]
)
def test_other_indices_are_refused(index):
    with pytest.raises(InvalidInputError) as refused:
        Layout.contiguous((2, 3), 4).pick(index)
    assert refused.value.param == "index"


@pytest.mark.parametrize("shape", [(-1,), (2, -2), (2.0,), "ab", 3, None, (True,), ((1,),), (1 << 61, 1), (0, 1 << 62)])
def test_bad_shapes_are_refused(shape):
    with pytest.raises(InvalidInputError) as refused:
        Layout.contiguous(shape, 8)
    assert refused.value.param == "shape"


def test_an_axis_of_one_makes_no_gap_whatever_its_stride():
    layout = Layout.contiguous((1, 2, 3), 4).transpose((1, 0, 2))
    assert (layout.strides, layout.is_contiguous, layout.run_length) == ((12, 24, 4), True, 6)
    assert layout.reshape((6,)).strides == (4,)


def test_the_largest_shape_fits():
    assert Layout.contiguous(((1 << 60) - 1, 8), 1).num_elements == (1 << 63) - 8


@pytest.mark.parametrize("shape", [(5,), (-1, -1), (-2, 3), (4, -1), (0, -1), (2, 3, 0)])
def test_reshape_to_another_number_of_elements_is_refused(shape):
    with pytest.raises(InvalidInputError, match="cannot see shape"):
        Layout.contiguous((2, 3), 4).reshape(shape)


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (-1, 1), (0.0, 1), (0, 1, 2)])
def test_transposing_wants_a_permutation(axes):
    with pytest.raises(InvalidInputError) as refused:
        Layout.contiguous((2, 3), 4).transpose(axes)
    assert refused.value.param == "axes"
