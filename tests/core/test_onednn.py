"""Products by whichever way is fastest are those of torch."""

from __future__ import annotations

import pytest
import torch

from contrastive_text.core.machine import dot_products


@pytest.mark.parametrize("features", [6, 16, 48])
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 512])
@pytest.mark.parametrize("columns", [0, 1, 2, 33])
def test_products_are_those_of_torch_of_whole_numbers(rows: int, columns: int, features: int) -> None:
    draws = torch.Generator().manual_seed(0)
    # Exact in any order of summation.
    left, right = (torch.randint(-9, 9, (n, features), generator=draws).float() for n in (rows, columns))
    found = dot_products(left, right)
    assert torch.equal(found, left @ right.T)
    assert found.is_contiguous()
    assert torch.equal(dot_products(left.T.contiguous().T, right), found)
    by_feature = torch.cat([right, right]).T.contiguous().T[:columns]
    assert torch.equal(dot_products(left, by_feature), found)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_products_are_rounded_as_sums_of_float32_are_in_a_block_of_any_size(rows: int) -> None:
    draws = torch.Generator().manual_seed(0)
    queries, columns = (torch.randn(n, 384, generator=draws) for n in (rows, 1003))
    # The bound of a sum in any order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    bound = 384 * torch.finfo(torch.float32).eps * (queries.double().abs() @ columns.double().abs().T)
    for size in (1, 2, 7, 16, 1003):
        error = dot_products(queries, columns[:size]).double() - queries.double() @ columns[:size].double().T
        assert (error.abs() <= bound[:, :size]).all()
