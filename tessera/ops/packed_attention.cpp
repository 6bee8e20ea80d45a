// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/packed_attention.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/attention_block.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

/// The tokens of one document, or of all samples if each is one document.
struct Document {
  std::int64_t sample = 0, samples = 1;
  Run tokens;
  [[nodiscard]] at::Tensor of(const at::Tensor& x_BHTK) const {
    return x_BHTK.narrow(0, sample, samples).narrow(2, tokens.begin, tokens.end - tokens.begin);
  }
};

std::vector<Document> list_of(const at::Tensor& starts_BT) {
  // Without values: as if each sample were one document, which needs the most memory.
  if (starts_BT.is_meta())
    return {{.sample = 0, .samples = starts_BT.size(0), .tokens = {0, starts_BT.size(1)}}};
  const auto samples = documents_of(starts_BT);
  const bool whole = std::all_of(
      samples.begin(), samples.end(), [](const auto& runs) { return runs.size() == 1; });
  if (whole && !samples.empty()) {
    return {{.sample = 0, .samples = std::ssize(samples), .tokens = samples[0][0]}};
  }
  std::vector<Document> out;
  for (std::size_t b = 0; b < samples.size(); ++b) {
    for (const Run& run : samples[b])
      out.push_back({.sample = static_cast<std::int64_t>(b), .samples = 1, .tokens = run});
  }
  return out;
}

AttentionBlock block_of(const Document& document, const AttentionArgs& args, std::int64_t tokens) {
  const Run& run = document.tokens;
  AttentionBlock block;
  block.causal = args.causal;
  block.scale = args.scale;
  block.first_head = args.first_head;
  block.tokens = tokens;
  block.queries = block.keys = {run};
  block.window = args.window;
  block.softcap = args.softcap;
  block.alibi = args.alibi;
  if (args.bias_HTS.defined()) {
    const std::int64_t count = run.end - run.begin;
    block.bias_HTS = args.bias_HTS.narrow(1, run.begin, count).narrow(2, run.begin, count);
  }
  if (args.mask_BS.defined()) {
    block.mask_BS = args.mask_BS.narrow(0, document.sample, document.samples)
                        .narrow(1, run.begin, run.end - run.begin);
  }
  if (args.dropout.active()) {
    block.dropout = args.dropout;
    const auto first = args.dropout.sample_ids.begin() + document.sample;
    block.dropout.sample_ids = {first, first + document.samples};
  }
  return block;
}

void check(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args) {
  TESSERA_REQUIRE(args.query_offset == 0 && q.size(2) == k.size(2) && args.starts_BT.dim() == 2 &&
                      args.starts_BT.size(0) == q.size(0) && args.starts_BT.size(1) == q.size(2),
                  Shape,
                  fmt::format("documents that begin at {} for queries {} and keys {}",
                              shape(args.starts_BT),
                              shape(q),
                              shape(k)),
                  "expected attention of whole samples, and [batch, tokens]");
}

}  // namespace

std::vector<std::vector<Run>> documents_of(const at::Tensor& starts_BT) {
  const at::Tensor starts = host_values(starts_BT).contiguous();
  const std::int64_t tokens = starts.size(1);
  std::vector<std::vector<Run>> out(static_cast<std::size_t>(starts.size(0)));
  const std::int64_t* start = starts.data_ptr<std::int64_t>();
  for (std::vector<Run>& runs : out) {
    for (std::int64_t t = 0; t < tokens; ++t, ++start) {
      if (*start == t) {
        runs.push_back({t, t + 1});
        continue;
      }
      TESSERA_REQUIRE(!runs.empty() && *start == runs.back().begin,
                      Shape,
                      fmt::format("token {} belongs to a document that begins at {}", t, *start),
                      "number the tokens of a sample from 0, and give each the first of its own "
                      "document, which no other interrupts");
      runs.back().end = t + 1;
    }
  }
  return out;
}

AttentionOut packed_attention(const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGTK,
                              const at::Tensor& v_BGTK,
                              const AttentionArgs& args) {
  check(q_BHTK, k_BGTK, args);
  const AttentionOut out = {at::empty_like(q_BHTK),
                            at::empty({q_BHTK.size(0), q_BHTK.size(1), q_BHTK.size(2)},
                                      q_BHTK.options().dtype(at::kFloat))};
  for (const Document& document : list_of(args.starts_BT)) {
    const AttentionOut part = attention_block(document.of(q_BHTK),
                                              document.of(k_BGTK),
                                              document.of(v_BGTK),
                                              block_of(document, args, q_BHTK.size(2)));
    document.of(out.y_BHTK).copy_(part.y_BHTK);
    document.of(out.saved).copy_(part.saved);
  }
  return out;
}

AttentionGrads packed_attention_backward(const at::Tensor& dy_BHTK,
                                         const at::Tensor& q_BHTK,
                                         const at::Tensor& k_BGTK,
                                         const at::Tensor& v_BGTK,
                                         const AttentionOut& out,
                                         const AttentionArgs& args) {
  check(q_BHTK, k_BGTK, args);
  const AttentionGrads grads = {
      at::empty_like(q_BHTK),
      at::empty_like(k_BGTK),
      at::empty_like(v_BGTK),
      args.bias_HTS.defined() ? at::zeros_like(args.bias_HTS) : at::Tensor()};
  for (const Document& document : list_of(args.starts_BT)) {
    const AttentionGrads part =
        attention_block_backward(document.of(dy_BHTK),
                                 document.of(q_BHTK),
                                 document.of(k_BGTK),
                                 document.of(v_BGTK),
                                 {document.of(out.y_BHTK), document.of(out.saved).contiguous()},
                                 block_of(document, args, q_BHTK.size(2)));
    document.of(grads.dq_BHTK).copy_(part.dq_BHTK);
    document.of(grads.dk_BGSK).copy_(part.dk_BGSK);
    document.of(grads.dv_BGSK).copy_(part.dv_BGSK);
    if (!grads.dbias_HTS.defined()) continue;
    const Run& run = document.tokens;
    grads.dbias_HTS.narrow(1, run.begin, run.end - run.begin)
        .narrow(2, run.begin, run.end - run.begin)
        .add_(part.dbias_HTS);
  }
  return grads;
}

}  // namespace tessera::ops
