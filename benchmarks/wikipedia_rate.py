"""How fast a core reads Wikipedia dumps: pages out of XML, and their wikitext as prose.

Seconds are those of the processor, so other work on the machine matters less. The first is work of the process that
hands out the units, after decompression; the second is divided among all workers.

    python benchmarks/wikipedia_rate.py PATH/enwiki-pages-articles.xml.bz2
"""

import argparse
import io
import time

from mlm_jax.prepare.sources import find_files
from mlm_jax.prepare.wiki import pages, prose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a file, a folder or a pattern")
    parser.add_argument(
        "--most_bytes", type=int, default=1 << 30, help="of XML of each file, in memory (default 1 GiB)"
    )
    found, size, reading = [], 0, 0.0
    args = parser.parse_args()
    for file in find_files(args.source):
        with file.open() as handle:
            data = handle.read(args.most_bytes)
        start = time.process_time()
        found += pages(io.BytesIO(data))
        reading += time.process_time() - start
        size += len(data)
    articles = [page for page in found if not page.problem]
    prose("[[warm-up]]")
    start = time.process_time()
    texts = [prose(page.text, page.site) for page in articles]
    rendering = time.process_time() - start
    wikitext = sum(len(page.text.encode("utf-8", "replace")) for page in articles)
    print(f"XML: {size / 1e6:.1f} MB, {len(found):,} pages, {size / 1e6 / reading:.0f} MB/s")
    print(
        f"wikitext: {wikitext / 1e6:.1f} MB, {len(articles):,} articles, {wikitext / 1e6 / rendering:.2f} MB/s, "
        f"{len(articles) / rendering:.0f} articles/s; {sum(map(len, texts)) / 1e6:.1f} million characters of prose"
    )


if __name__ == "__main__":
    main()
