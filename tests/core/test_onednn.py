"""Products by whichever way is fastest are those of torch, and equal columns have equal ones."""

from __future__ import annotations

import pytest
import torch

from contrastive_text.core.onednn import has_onednn, products


@pytest.mark.parametrize("features", [6, 16, 48])
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("columns", [0, 1, 2, 33])
def test_products_are_those_of_torch_of_whole_numbers(rows: int, columns: int, features: int) -> None:
    draws = torch.Generator().manual_seed(0)
    # Exact in any order of summation.
    left, right = (torch.randint(-9, 9, (n, features), generator=draws).float() for n in (rows, columns))
    found = products(left, right)
    assert torch.equal(found, left @ right.T)
    assert found.is_contiguous()
    assert torch.equal(products(left.T.contiguous().T, right), found)
    by_feature = torch.cat([right, right]).T.contiguous().T[:columns]
    assert torch.equal(products(left, by_feature), found)


@pytest.mark.skipif(not has_onednn(), reason="other kernels, which round as they do")
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_equal_columns_have_equal_products_in_a_block_of_any_size(rows: int) -> None:
    draws = torch.Generator().manual_seed(0)
    queries, column = torch.randn(rows, 384, generator=draws), torch.randn(1, 384, generator=draws)
    found = torch.cat([products(queries, column.repeat(size, 1)) for size in (1, 2, 7, 1003)], dim=1)
    assert torch.equal(found, found[:, :1].expand_as(found))
