import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from contrastive_text.runs.report.groups import central, k_means, plane_of, words_of


def clouds(seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[6.0, 0, 0], [0, 6.0, 0], [0, 0, 6.0]])
    return torch.cat(
        [centre + torch.randn(size, 3, generator=rng) for centre, size in zip(centres, (5, 20, 9), strict=True)]
    )


def test_k_means_finds_what_sklearn_finds_where_groups_are_clear() -> None:
    points = clouds()
    ours = k_means(points, 3)
    theirs = KMeans(3, n_init=10, random_state=0).fit_predict(points.numpy())
    assert len({*zip(ours.tolist(), theirs.tolist(), strict=True)}) == 3  # the same groups under other numbers
    assert torch.bincount(ours).tolist() == [20, 9, 5]  # by falling size


def test_each_point_is_in_the_group_whose_mean_is_nearest() -> None:
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    groups = k_means(points, 5)
    means = torch.stack([points[groups == group].mean(dim=0) for group in range(5)])
    for point, group in zip(points, groups, strict=True):
        assert int(((means - point) ** 2).sum(dim=1).argmin()) == int(group)


def test_equal_points_make_one_group() -> None:
    assert k_means(torch.ones(4, 2), 2).tolist() == [0, 0, 0, 0]


def test_the_central_point_of_a_group_is_nearest_its_mean() -> None:
    points = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    assert central(points, torch.tensor([0, 0, 0, 1])) == [1, 3]


def test_words_that_all_groups_share_name_none() -> None:
    texts = ["the bird sings", "the bird flies", "the river runs", "the river bends"]
    named = words_of(texts, torch.tensor([0, 0, 1, 1]))
    assert [words.split(", ")[0] for words in named] == ["bird", "river"]
    assert not any("the" in words.split(", ") for words in named)


def test_the_plane_is_that_of_principal_components_with_fixed_signs() -> None:
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(2)) * torch.tensor([5.0, 3, 1, 1, 1, 1])
    places, share = plane_of(points)
    pca = PCA(2).fit(points.double().numpy())
    signs = np.sign(pca.components_[range(2), np.abs(pca.components_).argmax(axis=1)])
    expected = pca.transform(points.double().numpy()) * signs
    assert np.allclose(places.numpy(), expected, atol=1e-4)  # float32 of values up to some 15
    assert share == pytest.approx(pca.explained_variance_ratio_.sum())


def test_a_turned_and_mirrored_picture_is_turned_back() -> None:
    points = torch.randn(30, 5, generator=torch.Generator().manual_seed(3)) * torch.tensor([4.0, 2, 1, 1, 1])
    first, _ = plane_of(points)
    turned, _ = plane_of(points * torch.tensor([-1.0, 1, 1, 1, 1]), like=first)
    assert torch.allclose(turned, first, atol=1e-4)  # as above


def test_vectors_of_one_feature_lie_on_a_line() -> None:
    places, share = plane_of(torch.tensor([[0.0], [1.0], [3.0]]))
    assert places.shape == (3, 2) and share == pytest.approx(1)
