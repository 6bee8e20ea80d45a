// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/transport.h"
#include "tessera/nn/attention_source.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/ops/packed_attention.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {

namespace {

/// The tokens of a document, and where its prefix ends.
struct PrefixedDocument {
  ops::Run tokens;
  std::int64_t prefix_end = 0;
};

/// One sample's queries and keys, and where the queries are among all tokens.
struct PrefixedSample {
  at::Tensor q_HTK, k_GSK, v_GSK;
  std::vector<ops::Run> queries;  ///< runs of the sample's tokens, in the order of q
  std::vector<PrefixedDocument> documents;
};

/// Each run of queries is at most two calls for each document: those of the prefix see the prefix,
/// the others all tokens of the document before them, so that no pair of tokens is computed in
/// vain.
at::Tensor attend_prefixed(const PrefixedSample& sample,
                           const ops::AttentionArgs& args,
                           StepContext& context) {
  std::vector<at::Tensor> parts;
  std::int64_t done = 0;  // queries
  const auto attend = [&](ops::Run queries, ops::Run keys, bool causal) {
    const std::int64_t count = queries.end - queries.begin, seen = keys.end - keys.begin;
    if (count <= 0) return;
    ops::AttentionArgs own = args;
    own.starts_BT = at::Tensor();
    own.causal = causal;
    own.query_offset = causal ? queries.begin - keys.begin : 0;
    if (args.mask_BS.defined()) own.mask_BS = args.mask_BS.narrow(1, keys.begin, seen);
    if (args.bias_HTS.defined())
      own.bias_HTS = args.bias_HTS.narrow(1, done, count).narrow(2, keys.begin, seen);
    if (args.dropout.active()) {
      own.place =
          ops::AttentionPlace{.tokens = sample.k_GSK.size(2), .queries = {queries}, .keys = {keys}};
    }
    parts.push_back(attend_here({sample.q_HTK.narrow(2, done, count),
                                 sample.k_GSK.narrow(2, keys.begin, seen),
                                 sample.v_GSK.narrow(2, keys.begin, seen)},
                                std::move(own),
                                context));
    done += count;
  };
  for (const ops::Run& run : sample.queries) {
    for (const auto& [tokens, prefix_end] : sample.documents) {
      const std::int64_t begin = std::max(run.begin, tokens.begin),
                         end = std::min(run.end, tokens.end);
      attend({begin, std::min(end, prefix_end)}, {tokens.begin, prefix_end}, /*causal=*/false);
      attend({std::max(begin, prefix_end), end}, {tokens.begin, end}, /*causal=*/true);
    }
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

/// The documents of each of `count` samples from `first` on. Without separate documents a sample is
/// one; `starts_BS` has only these samples.
struct SampleRange {
  std::int64_t first = 0, count = 0;
};
std::vector<std::vector<PrefixedDocument>> prefixed_documents(const at::Tensor& lengths,
                                                              const at::Tensor& starts_BS,
                                                              const SampleRange& samples,
                                                              std::int64_t tokens) {
  // A meta tensor has no values. Memory is the same for every length of the prefix.
  const bool known = !lengths.is_meta();
  std::vector<std::vector<ops::Run>> runs(static_cast<std::size_t>(samples.count), {{0, tokens}});
  if (starts_BS.defined() && known) runs = ops::documents_of(starts_BS);
  const at::Tensor values =
      known ? host_values(lengths).reshape({lengths.size(0), -1}).contiguous() : at::Tensor();
  std::vector<std::vector<PrefixedDocument>> out;
  for (std::int64_t b = 0; b < samples.count; ++b) {
    out.emplace_back();
    for (const ops::Run& run : runs[static_cast<std::size_t>(b)]) {
      std::int64_t prefix = 0;
      if (known) {
        const at::Tensor of_sample = values[samples.first + b];
        prefix = of_sample[of_sample.numel() > 1 ? run.begin : 0].item<std::int64_t>();
      }
      const std::int64_t length = run.end - run.begin;
      TESSERA_REQUIRE(prefix >= 0 && prefix <= length,
                      Shape,
                      fmt::format("a prefix of {} tokens in a sample of {}", prefix, length),
                      "give at most the tokens of a sample in \"prefix_lengths\"");
      out.back().push_back({run, run.begin + prefix});
    }
  }
  return out;
}

}  // namespace

namespace {

/// The starts of the chunks of `tokens` tokens, within their documents if there are any: [B, S].
/// They are made on the host, so that ops::documents_of() does not wait for a device.
at::Tensor starts_of_chunks(const at::Tensor& starts_BT,
                            const at::Tensor& q,
                            std::int64_t tokens,
                            std::int64_t chunk) {
  const at::TensorOptions where =
      (q.is_meta() ? q.options() : at::TensorOptions()).dtype(at::kLong);
  const at::Tensor all = at::arange(tokens, where).unsqueeze(0);
  at::Tensor first = starts_BT;
  if (!first.defined())
    first = at::zeros({q.size(0), tokens}, where);
  else if (!q.is_meta())
    first = host_values(first);
  return on_device(first + at::div(all - first, chunk, "floor") * chunk, q.device());
}

/// Expresses args.chunk by what the source of keys and values knows. A cache from which one token
/// is read has one window; pages have one for each sequence.
void express_chunks(ops::AttentionArgs& args, const at::Tensor& q, StepContext& context) {
  if (args.chunk == 0) return;
  TESSERA_ASSERT(args.causal && args.window == 0);
  if (context.mode() == Mode::Decode) {
    if (is_paged(context.batch)) return;
    TESSERA_REQUIRE(q.size(2) == 1 || context.position + q.size(2) <= args.chunk,
                    Unsupported,
                    fmt::format("several tokens at once after others in block {}, whose attention "
                                "is within chunks",
                                context.block_name),
                    "generate one token at a time");
    args.window = q.size(2) == 1 ? context.position % args.chunk + 1 : 0;
  } else {
    const std::int64_t tokens = q.size(2) * token_source(q, context).ranks(context);
    if (tokens > args.chunk)
      args.starts_BT = starts_of_chunks(args.starts_BT, q, tokens, args.chunk);
  }
  args.chunk = 0;
}

}  // namespace

at::Tensor attention(const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     ops::AttentionArgs args,
                     const Block& block,
                     StepContext& context) {
  flow_form(context).cut_attention(args, context);
  express_chunks(args, q, context);
  const AttentionSource& source = attention_source(q, args, context);
  return source.attend({q, k, v}, std::move(args), block, context);
}

at::Tensor padded_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            ops::AttentionArgs args,
                            std::int64_t tokens,
                            const Block& block,
                            StepContext& context) {
  TESSERA_ASSERT(!args.causal);
  const TokenSource& source = token_source(q, context);
  const std::int64_t padding = q.size(2) * source.ranks(context) - tokens;
  // A rank of a grid may have no samples.
  if (padding == 0 || q.size(0) == 0) return attention(q, k, v, std::move(args), block, context);
  TESSERA_ASSERT(padding > 0);
  flow_form(context).cut_attention(args, context);
  return source.attend_padded({q, k, v}, std::move(args), tokens, context);
}

at::Tensor prefix_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            ops::AttentionArgs args,
                            const at::Tensor& lengths,
                            const Block& block,
                            StepContext& context) {
  TESSERA_REQUIRE(args.window == 0 && args.chunk == 0 && args.alibi.empty(),
                  Unsupported,
                  fmt::format("a prefix that sees itself in both directions, in block {}, whose "
                              "attention has a window, chunks or ALiBi",
                              context.block_name),
                  "choose the family of a decoder without them, or the task pretrain");
  if (context.mode() == Mode::Prefill) {
    fill_cache(k, v, block, context);
    args.causal = false;
    return attention(q, k, v, std::move(args), block, context);
  }
  const std::int64_t first_sample = flow_form(context).cut_attention(args, context);
  const TokenSource& source = token_source(q, context);
  auto [qkv, queries] = source.with_all_keys({q, k, v}, args, context);
  const std::int64_t tokens = qkv[1].size(2);
  const std::vector<std::vector<PrefixedDocument>> documents =
      prefixed_documents(lengths, args.starts_BT, {first_sample, qkv[0].size(0)}, tokens);
  std::vector<at::Tensor> samples;
  for (std::int64_t b = 0; b < qkv[0].size(0); ++b) {
    ops::AttentionArgs own = args;
    if (args.mask_BS.defined()) own.mask_BS = args.mask_BS.narrow(0, b, 1);
    if (args.dropout.active())
      own.dropout.sample_ids = {args.dropout.sample_ids.at(static_cast<std::size_t>(b))};
    samples.push_back(attend_prefixed({qkv[0].narrow(0, b, 1),
                                       qkv[1].narrow(0, b, 1),
                                       qkv[2].narrow(0, b, 1),
                                       queries,
                                       documents[static_cast<std::size_t>(b)]},
                                      own,
                                      context));
  }
  // A rank of a grid may have no samples; its backward takes the same steps.
  if (samples.empty()) return attend_here(std::move(qkv), std::move(args), context);
  return source.to_own_tokens(at::cat(samples), context);
}

void fill_cache(const at::Tensor& k,
                const at::Tensor& v,
                const Block& block,
                StepContext& context) {
  TESSERA_ASSERT(context.mode() == Mode::Prefill && context.position == 0);
  if (is_paged(context.batch)) {
    context.state<PagedKvCache>(block).write(k, v, *context.batch, context.cache_capacity);
    return;
  }
  context.state<KvCache>(block).write(0, k, v, context.cache_capacity);
}

at::Tensor cross_attention(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           ops::AttentionArgs args,
                           StepContext& context) {
  flow_form(context).cut_attention(args, context);
  // Ranks of a grid without samples have nothing to exchange; token_source() says so as well.
  if (!context.shares_tokens() || q.size(0) == 0)
    return attend_here({q, k, v}, std::move(args), context);
  const std::vector<at::Tensor> kv = keys_of_all_ranks(at::cat({k, v}), context).chunk(2);
  if (args.dropout.active()) {
    const std::int64_t ranks = context.context_parallel->group->size();
    const std::vector<std::int64_t> chunks = own_chunks(context);
    const std::int64_t each = q.size(2) / std::ssize(chunks), keys = kv[0].size(2);
    ops::AttentionPlace place{.tokens = q.size(2) * ranks, .keys = {{0, keys}}, .of_keys = keys};
    for (const std::int64_t chunk : chunks)
      place.queries.push_back({chunk * each, (chunk + 1) * each});
    args.place = std::move(place);
  }
  return attend_here({q, kv[0], kv[1]}, std::move(args), context);
}

}  // namespace tessera::nn
