// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/page_tables.h"

#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/kv_cache.h"

namespace tessera::nn::paged {
namespace {

using Table = std::vector<std::vector<std::int64_t>>;

Table lists_of(const at::Tensor& x) {
  Table out(static_cast<std::size_t>(x.size(0)));
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t w = 0; w < x.size(1); ++w)
      out[static_cast<std::size_t>(b)].push_back(x[b][w].item<std::int64_t>());
  }
  return out;
}

struct Described {
  Table table, copies;
};
Described described(PageTables& tables, const std::vector<std::size_t>& rows) {
  Batch batch;
  tables.describe(rows, batch);
  return {lists_of(batch.tensor(kPageTable)),
          batch.has(kPageCopies) ? lists_of(batch.tensor(kPageCopies)) : Table()};
}

TEST(PageTables, GiveASequencePagesAsItGrows) {
  PageTables tables(4);
  const std::size_t a = tables.begin(5), b = tables.begin(4);

  EXPECT_EQ(described(tables, {a, b}).table, (Table{{0, 1}, {2, -1}}));
  tables.make_room(a, 5);
  tables.make_room(b, 4);

  EXPECT_EQ(described(tables, {b, a}).table, (Table{{2, 3}, {0, 1}}));
  EXPECT_EQ(tables.used(), 4);
  EXPECT_THROW(tables.make_room(b, 12), Error);
}

TEST(PageTables, CopyASharedPageBeforeItIsWritten) {
  PageTables tables(4);
  const std::size_t prompt = tables.begin(6);
  const std::size_t a = tables.fork(prompt), b = tables.fork(prompt);
  EXPECT_EQ(tables.used(), 2);

  tables.make_room(a, 6);
  tables.make_room(b, 6);
  const Described both = described(tables, {a, b});
  EXPECT_EQ(both.table, (Table{{0, 2}, {0, 3}}));
  EXPECT_EQ(both.copies, (Table{{1, 2}, {1, 3}}));
  EXPECT_EQ(described(tables, {a, b}).copies, Table());  // once

  // The last one that has a page writes into it.
  tables.make_room(prompt, 6);
  EXPECT_EQ(described(tables, {prompt}).copies, Table());
}

TEST(PageTables, UseFreedPagesAgain) {
  PageTables tables(4);
  const std::size_t a = tables.begin(8), b = tables.fork(a);
  tables.make_room(b, 8);
  tables.end(a);
  EXPECT_EQ(tables.used(), 3);  // b has the first two
  tables.end(b);
  EXPECT_EQ(tables.used(), 0);

  const std::size_t c = tables.begin(9);
  EXPECT_EQ(described(tables, {c}).table, (Table{{0, 1, 2}}));
  EXPECT_THROW(tables.end(b), Error);
}

// A batch of one row whose tokens are `value`, at `position` of a page table.
void write_tokens(PagedKvCache& cache, double value, std::int64_t page, CacheForm form) {
  Batch batch;
  batch.set(kPageTable, at::full({1, 1}, page, at::kLong));
  if (form != CacheForm::Same)
    batch.set(kPageForm, at::tensor(static_cast<std::int64_t>(form), at::kLong));
  const at::Tensor k = at::full({1, 2, 3, 8}, value);
  cache.write(k, k, batch, /*capacity=*/0);
}

TEST(PagedKvCache, KeepsWhatItHasWhenItGrows) {
  for (const CacheForm form : {CacheForm::Same, CacheForm::BF16, CacheForm::Int8}) {
    PagedKvCache cache;
    write_tokens(cache, 2.0, 0, form);
    const std::int64_t before = cache.pages().count();
    write_tokens(cache, 3.0, 5, form);

    EXPECT_GT(cache.pages().count(), before);
    const ops::KvPages& pages = cache.pages();
    const auto value = [&](std::int64_t page) {
      const float scale =
          form == CacheForm::Int8 ? pages.key_scales_PGN[page][1][2].item<float>() : 1.0F;
      return pages.keys_PGNK[page][1][2][7].item<float>() * scale;
    };
    EXPECT_FLOAT_EQ(value(0), 2.0F);
    EXPECT_FLOAT_EQ(value(5), 3.0F);
  }
}

}  // namespace
}  // namespace tessera::nn::paged
