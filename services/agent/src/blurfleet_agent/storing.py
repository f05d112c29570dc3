"""Which store an agent stands on: the folder of a local fleet, or the Kubernetes API with a token bound to its pod."""

from __future__ import annotations

from blurfleet.store.folder import FolderStore
from blurfleet.store.port import Store
from blurfleet_agent.settings import AgentSettings

MANAGER = "blurfleet-agent"
# The loop of a node must never hang on a server that takes connections and says nothing.
_CONNECT_S = 2.0
_ANSWER_S = 5.0


def open_store(settings: AgentSettings) -> Store:
    """Return the store that `settings` name. Raises StoreError where there is neither kubeconfig nor pod account."""
    if settings.store_kind == "folder":
        assert settings.store is not None
        return FolderStore(settings.store)
    # The client is large; a local fleet does without it.
    from blurfleet.store.kube import KubeStore
    from blurfleet.store.kubeclient import Access, KubeClient

    access = Access(kubeconfig=settings.kubeconfig, token_file=settings.token_file)
    client = KubeClient(access, connections=4, connect_s=_CONNECT_S, answer_s=_ANSWER_S)
    store = KubeStore(client, manager=MANAGER, node=settings.node)
    store.follow("NodeEngine")
    return store
