// SPDX-License-Identifier: Apache-2.0
// Attention to keys and values in pages is that to the same ones in contiguous memory.
#include "tessera/ops/paged_attention.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/support.h"

#include "tessera/base/error.h"
#include "tessera/ops/aten/backend.h"
#include "tessera/ops/attention.h"

namespace tessera::ops::paged {
namespace {

constexpr std::int64_t kPage = 4, kPages = 30, kHeads = 4, kShared = 2, kChannels = 24;
const at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
/// Lengths that end within a page, at its end, and after several pages.
const std::vector<std::int64_t> kLengths = {1, 4, 5, 17, 30};

/// A page table in which consecutive pages are apart, and -1 behind the last one.
at::Tensor scattered_table() {
  at::Tensor table = at::full({std::ssize(kLengths), 8}, -1, at::kLong);
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < std::ssize(kLengths); ++b) {
    const std::int64_t pages = (kLengths[static_cast<std::size_t>(b)] + kPage - 1) / kPage;
    for (std::int64_t w = 0; w < pages; ++w, ++next)
      table[b][w] = next * 7 % kPages;  // 7 and 30 have no common divisor
  }
  return table;
}

/// Keys and values of each sequence, and the same in pages.
struct Texts {
  std::vector<at::Tensor> keys, values;  // [1, G, S, K]
  at::Tensor table = scattered_table();
  KvPages pages;
  Texts(at::ScalarType computed, at::ScalarType stored) {
    for (std::size_t b = 0; b < kLengths.size(); ++b) {
      keys.push_back(random({1, kShared, kLengths[b], kChannels}, 10 + b, computed));
      values.push_back(random({1, kShared, kLengths[b], kChannels}, 20 + b, computed));
    }
    pages = kv_pages(kPages, kPage, keys[0], stored);
    // Memory that was never written must not be read.
    for (const at::Tensor& x : {pages.keys_PGNK, pages.values_PGNK}) {
      if (stored != at::kChar) x.fill_(NAN);
    }
    for (std::size_t b = 0; b < kLengths.size(); ++b) {
      // Half of a sequence is written at once, as a prompt is, and the rest token by token.
      const std::int64_t first = (kLengths[b] + 1) / 2;
      write(b, 0, first);
      for (std::int64_t t = first; t < kLengths[b]; ++t)
        write(b, t, 1);
    }
  }
  void write(std::size_t b, std::int64_t from, std::int64_t count) const {
    write_pages(pages,
                keys[b].narrow(2, from, count),
                values[b].narrow(2, from, count),
                table.narrow(0, static_cast<std::int64_t>(b), 1),
                int64s({from}));
  }
};

struct Form {
  const char* name;
  std::int64_t window = 0;
  bool slopes = false, bias = false;
  double softcap = 0.0;
};
const Form kForms[] = {{"causal"},
                       {"window", 6},
                       {"alibi", 0, true},
                       {"bias", 0, false, true},
                       {"cap", 0, false, false, 0.5}};

AttentionArgs args_of(const Form& form) {
  AttentionArgs args;
  args.window = form.window;
  args.softcap = form.softcap;
  if (form.slopes) args.alibi = alibi_slopes(kHeads);
  return args;
}

TEST(PagedAttention, HasTheBitsOfContiguousMemory) {
  const at::Tensor bias = random({kHeads, 1, 30}, 4);
  for (const at::ScalarType dtype : kDtypes) {
    const Texts texts(dtype, dtype);
    const at::Tensor q = random({std::ssize(kLengths), kHeads, 1, kChannels}, 1, dtype);
    for (const Form& form : kForms) {
      SCOPED_TRACE(std::string(form.name) + " " + c10::toString(dtype));
      AttentionArgs args = args_of(form);
      if (form.bias) args.bias_HTS = bias;

      const at::Tensor y = paged_attention(q, texts.pages, texts.table, int64s(kLengths), args);

      for (std::size_t b = 0; b < kLengths.size(); ++b) {
        AttentionArgs own = args;
        own.query_offset = kLengths[b] - 1;
        if (form.bias) own.bias_HTS = bias.narrow(2, 30 - kLengths[b], kLengths[b]);
        const auto row = static_cast<std::int64_t>(b);
        EXPECT_TRUE(y.narrow(0, row, 1).equal(
            attention(q.narrow(0, row, 1), texts.keys[b], texts.values[b], own).y_BHTK))
            << kLengths[b] << " tokens";
      }
    }
  }
}

TEST(PagedAttention, AgreesWithPlainOperations) {
  const aten::AtenBackend plain;
  const at::Tensor bias = random({kHeads, 1, 30}, 4);
  for (const at::ScalarType stored : {at::kFloat, at::kChar}) {
    const Texts texts(at::kFloat, stored);
    const at::Tensor q = random({std::ssize(kLengths), kHeads, 1, kChannels}, 1);
    for (const Form& form : kForms) {
      SCOPED_TRACE(form.name);
      AttentionArgs args = args_of(form);
      if (form.bias) args.bias_HTS = bias;
      expect_close(
          paged_attention(q, texts.pages, texts.table, int64s(kLengths), args),
          doubles(plain.paged_attention(q, texts.pages, texts.table, int64s(kLengths), args)),
          2e-6);
    }
  }
}

// The largest magnitude of a token's head is 127 steps, and rounding errs by half a step.
TEST(PagedAttention, RoundsToEightBitsForEachTokenAndHead) {
  const Texts exact(at::kFloat, at::kFloat), rounded(at::kFloat, at::kChar);
  const at::Tensor restored =
      rounded.pages.keys_PGNK.to(at::kFloat) * rounded.pages.key_scales_PGN.unsqueeze(3);
  for (std::size_t b = 0; b < kLengths.size(); ++b) {
    for (std::int64_t t = 0; t < kLengths[b]; ++t) {
      const auto page = exact.table[static_cast<std::int64_t>(b)][t / kPage].item<std::int64_t>();
      const at::Tensor want = exact.keys[b][0].select(1, t),
                       got = restored[page].select(1, t % kPage);
      const at::Tensor step = want.abs().amax(1, true) / 127;
      EXPECT_TRUE(((want - got).abs() <= step * 0.5001).all().item<bool>()) << b << " " << t;
      EXPECT_GT((want - got).abs().max().item<float>(), 0.0F);
    }
  }
  const at::Tensor q = random({std::ssize(kLengths), kHeads, 1, kChannels}, 1);
  const auto attend = [&](const Texts& texts) {
    return paged_attention(q, texts.pages, texts.table, int64s(kLengths), {});
  };
  expect_close(attend(rounded), doubles(attend(exact)), 0.02);
}

TEST(PagedAttention, DoesNotDependOnTheThreads) {
  const int before = at::get_num_threads();
  const Texts texts(at::kFloat, at::kFloat);
  const at::Tensor q = random({std::ssize(kLengths), kHeads, 1, kChannels}, 1);
  const auto attend = [&](int threads) {
    at::set_num_threads(threads);
    return paged_attention(q, texts.pages, texts.table, int64s(kLengths), {});
  };
  EXPECT_TRUE(attend(1).equal(attend(2)));
  at::set_num_threads(before);
}

TEST(PagedAttention, CopiesWholePages) {
  for (const at::ScalarType stored : {at::kBFloat16, at::kChar}) {
    const Texts texts(at::kFloat, stored);
    const std::int64_t of = texts.table[4][0].item<std::int64_t>(), to = 29;
    const at::Tensor q = random({1, kHeads, 1, kChannels}, 1);
    const auto attend = [&](std::int64_t page) {
      return paged_attention(q, texts.pages, at::full({1, 1}, page, at::kLong), int64s({4}), {});
    };
    copy_pages(texts.pages, int64s({of, to}).view({1, 2}));
    EXPECT_TRUE(attend(of).equal(attend(to)));
  }
}

TEST(PagedAttention, RefusesWhatHasNoPage) {
  const Texts texts(at::kFloat, at::kFloat);
  const at::Tensor kv = random({1, kShared, 1, kChannels}, 1);
  const auto write = [&](std::int64_t page, std::int64_t position) {
    write_pages(texts.pages, kv, kv, at::full({1, 2}, page, at::kLong), int64s({position}));
  };
  write(3, 7);
  EXPECT_THROW(write(-1, 0), Error);
  EXPECT_THROW(write(kPages, 0), Error);
  EXPECT_THROW(write(3, 8), Error);
  EXPECT_THROW((void)paged_attention(random({1, 3, 1, kChannels}, 1),
                                     texts.pages,
                                     texts.table.narrow(0, 0, 1),
                                     int64s({1}),
                                     {}),
               Error);
}

}  // namespace
}  // namespace tessera::ops::paged
