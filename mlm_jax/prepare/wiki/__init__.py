"""Wikipedia: pages of an XML dump, and their wikitext as prose."""

from mlm_jax.prepare.wiki.dump import Page, Site, pages
from mlm_jax.prepare.wiki.wikitext import prose

__all__ = ["Page", "Site", "pages", "prose"]
