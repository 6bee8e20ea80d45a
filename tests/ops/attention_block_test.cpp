// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention_block.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ops/support.h"
#include "support/attention_reference.h"

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

using Runs = std::vector<Run>;

constexpr std::int64_t kB = 2, kH = 3, kT = 24, kK = 16;

// fp32: the tolerance of whole attention, and one more merge. 16 bits: every block rounds its
// result.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 4e-6 : 4 * epsilon(dtype);
}

struct Text {
  at::Tensor q, k, v, dy, mask;
  DropoutKey dropout;
};

Text text(at::ScalarType dtype) {
  const std::array<std::int64_t, 4> sizes = {kB, kH, kT, kK};
  return {random(sizes, 1, dtype),
          random(sizes, 2, dtype),
          random(sizes, 3, dtype),
          random(sizes, 4, dtype),
          {},
          {}};
}

test::AttentionReference reference(const Text& text, bool causal) {
  const at::Tensor kept =
      text.dropout.active() ? dropout(at::ones({kB, kH, kT, kT}), text.dropout) : at::Tensor();
  return test::attention_reference(text.q, text.k, text.v, text.dy, causal, text.mask, kept);
}

at::Tensor rows(const at::Tensor& x, const Runs& runs) {
  std::vector<at::Tensor> out;
  for (const Run& run : runs)
    out.push_back(x.slice(2, run.begin, run.end));
  return at::cat(out, 2);
}

AttentionBlock block_of(const Text& text, Runs queries, Runs keys, bool causal) {
  AttentionBlock block;
  block.causal = causal;
  block.dropout = text.dropout;
  block.tokens = kT;
  if (text.mask.defined()) {
    std::vector<at::Tensor> columns;
    for (const Run& run : keys)
      columns.push_back(text.mask.slice(1, run.begin, run.end));
    block.mask_BS = at::cat(columns, 1);
  }
  block.queries = std::move(queries);
  block.keys = std::move(keys);
  return block;
}

/// The queries' rows from several blocks of keys, and the gradients: dk and dv of all keys.
struct Merged {
  AttentionOut out;
  at::Tensor dq, dk, dv;
};

/// The block's queries are those of `queries` from row `first` on.
struct Piece {
  AttentionBlock block;
  std::int64_t first = 0;
};

Merged merged(const Text& text, const Runs& queries, const std::vector<Piece>& pieces) {
  const at::Tensor q = rows(text.q, queries), dy = rows(text.dy, queries);
  AttentionOut sum;
  for (const Piece& piece : pieces) {
    const AttentionOut out = attention_block(q.slice(2, piece.first),
                                             rows(text.k, piece.block.keys),
                                             rows(text.v, piece.block.keys),
                                             piece.block);
    EXPECT_EQ(out.y_BHTK.scalar_type(), q.scalar_type());
    if (!sum.saved.defined()) {
      sum = {out.y_BHTK.to(at::kFloat), out.saved};
    } else {
      merge_attention(out, piece.first, sum);
    }
  }
  Merged result = {
      sum, at::zeros(q.sizes()), at::zeros({kB, kH, kT, kK}), at::zeros({kB, kH, kT, kK})};
  const AttentionOut whole = {sum.y_BHTK.to(q.scalar_type()), sum.saved};
  for (const Piece& piece : pieces) {
    const AttentionGrads grads = attention_block_backward(
        dy.slice(2, piece.first),
        q.slice(2, piece.first),
        rows(text.k, piece.block.keys),
        rows(text.v, piece.block.keys),
        {whole.y_BHTK.slice(2, piece.first), whole.saved.slice(2, piece.first).contiguous()},
        piece.block);
    result.dq.slice(2, piece.first).add_(grads.dq_BHTK);
    std::int64_t at = 0;
    for (const Run& run : piece.block.keys) {
      const std::int64_t length = run.end - run.begin;
      result.dk.slice(2, run.begin, run.end).add_(grads.dk_BGSK.narrow(2, at, length));
      result.dv.slice(2, run.begin, run.end).add_(grads.dv_BGSK.narrow(2, at, length));
      at += length;
    }
  }
  return result;
}

class AttentionBlocks : public testing::TestWithParam<at::ScalarType> {};

/// A text for every case in which attention is computed differently.
std::vector<Text> texts(at::ScalarType dtype) {
  Text plain = text(dtype), padded = plain, dropped = plain;
  padded.mask = at::ones({kB, kT});
  padded.mask[1].slice(0, 14).zero_();
  dropped.dropout = {.p = 0.3, .key = 99, .sample_ids = {4, 9}};
  return {plain, padded, dropped};
}

// Every query sees every key: three blocks of keys, the middle one of two runs.
TEST_P(AttentionBlocks, OfAllKeysMergeToTheWhole) {
  for (const Text& text : texts(GetParam())) {
    SCOPED_TRACE(std::to_string(text.mask.defined()) + std::to_string(text.dropout.active()));
    const test::AttentionReference expected = reference(text, /*causal=*/false);
    const Runs all = {{0, kT}};

    const Merged got = merged(text,
                              all,
                              {{block_of(text, all, {{0, 5}}, false)},
                               {block_of(text, all, {{5, 7}, {17, kT}}, false)},
                               {block_of(text, all, {{7, 17}}, false)}});

    const double bound = tolerance(GetParam());
    expect_close(got.out.y_BHTK, doubles(expected.y), bound);
    expect_close(got.out.saved, doubles(expected.log_sum), bound);
    expect_close(got.dq, doubles(expected.dq), bound);
    expect_close(got.dk, doubles(expected.dk), bound);
    expect_close(got.dv, doubles(expected.dv), bound);
  }
}

// The second of three ranks in zigzag order, chunks of four: it has tokens 4 to 8 and 16 to 20.
TEST_P(AttentionBlocks, InZigzagOrderMergeToTheCausalWhole) {
  const Runs own = {{4, 8}, {16, 20}}, late = {{16, 20}};
  for (const Text& text : texts(GetParam())) {
    SCOPED_TRACE(std::to_string(text.mask.defined()) + std::to_string(text.dropout.active()));
    const test::AttentionReference expected = reference(text, /*causal=*/true);

    const Merged got = merged(text,
                              own,
                              {{block_of(text, own, own, true)},
                               {block_of(text, own, {{0, 4}}, false)},
                               {block_of(text, late, {{8, 12}, {12, 16}}, false), 4}});

    const double bound = tolerance(GetParam());
    expect_close(got.out.y_BHTK, doubles(rows(expected.y, own)), bound);
    expect_close(got.dq, doubles(rows(expected.dq, own)), bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         AttentionBlocks,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(AttentionBlock, WhoseKeysAreAllPaddingAddsNothing) {
  Text padded = text(at::kFloat);
  padded.mask = at::ones({kB, kT});
  padded.mask.slice(1, 12).zero_();
  const Runs all = {{0, kT}}, first = {{0, 12}}, padding = {{12, kT}};

  const Merged one = merged(padded, all, {{block_of(padded, all, first, false)}});
  const Merged both =
      merged(padded,
             all,
             {{block_of(padded, all, padding, false)}, {block_of(padded, all, first, false)}});

  expect_close(both.out.y_BHTK, doubles(one.out.y_BHTK), 1e-6);
  EXPECT_EQ(both.dv.slice(2, 12).abs().max().item<double>(), 0.0);
}

TEST(AttentionBlock, WorksOnMetaAndRefusesACausalBlockThatIsNotASquare) {
  const at::Tensor q =
      at::empty({2, 3, 4, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor k = at::empty({2, 3, 6, 8}, q.options());

  const AttentionOut out = attention_block(q, k, k, {});
  const AttentionGrads grads = attention_block_backward(q, q, k, k, out, {});

  EXPECT_EQ(out.y_BHTK.sizes(), q.sizes());
  EXPECT_EQ(out.saved.scalar_type(), at::kFloat);
  EXPECT_EQ(out.saved.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(grads.dk_BGSK.sizes(), k.sizes());
  AttentionBlock causal;
  causal.causal = true;
  EXPECT_THROW(
      attention_block(
          random({1, 1, 4, 8}, 1), random({1, 1, 6, 8}, 2), random({1, 1, 6, 8}, 3), causal),
      Error);
}

}  // namespace
}  // namespace tessera::ops
