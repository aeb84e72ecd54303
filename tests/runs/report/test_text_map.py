import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from contrastive_text.runs.report.vectors import central, k_means, principal_plane, words_of


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_k_means_finds_the_groups_of_sklearn_if_they_are_clear() -> None:
    centers = torch.eye(3) * 6
    points = torch.cat([centers[i] + random(size, 3, seed=i) for i, size in enumerate((5, 20, 9))])
    groups = k_means(points, 3)
    theirs = KMeans(3, n_init=10, random_state=0).fit_predict(points.numpy())
    assert len({*zip(groups.tolist(), theirs.tolist(), strict=True)}) == 3  # the same groups under other numbers
    assert torch.bincount(groups).tolist() == [20, 9, 5]  # by falling size
    assert k_means(torch.ones(4, 2), 2).tolist() == [0, 0, 0, 0]


def test_the_central_point_of_a_group_is_nearest_to_its_mean() -> None:
    assert central(torch.tensor([[0.0], [1.0], [5.0], [9.0]]), torch.tensor([0, 0, 0, 1])) == [1, 3]


def test_words_that_all_groups_share_name_none() -> None:
    texts = ["the bird sings", "the bird flies", "the river runs", "the river bends"]
    names = words_of(texts, torch.tensor([0, 0, 1, 1]))
    assert [words.split(", ")[0] for words in names] == ["bird", "river"]
    assert not any("the" in words.split(", ") for words in names)


def test_the_plane_has_the_principal_components_with_fixed_signs() -> None:
    points = random(40, 6, seed=2) * torch.tensor([5.0, 3, 1, 1, 1, 1])
    places, share = principal_plane(points)
    pca = PCA(2).fit(points.double().numpy())
    signs = np.sign(pca.components_[range(2), np.abs(pca.components_).argmax(axis=1)])
    expected = pca.transform(points.double().numpy()) * signs
    assert np.allclose(places.numpy(), expected, atol=1e-4)  # float32 of values up to some 15
    assert share == pytest.approx(pca.explained_variance_ratio_.sum())
    mirrored, _ = principal_plane(points * torch.tensor([-1.0, 1, 1, 1, 1, 1]), like=places)
    assert torch.allclose(mirrored, places, atol=1e-4)  # as above
    line, share = principal_plane(torch.tensor([[0.0], [1.0], [3.0]]))
    assert line.shape == (3, 2) and share == pytest.approx(1)
