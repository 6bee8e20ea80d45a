// SPDX-License-Identifier: Apache-2.0
// ONNX operators of tessera's operations. The formulas are those of their declarations in ops/;
// rounding may differ. Legend: B batch, H heads, G heads of keys and values, T queries, S keys, K
// channels of a head, P pairs of channels.
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/interop/onnx/ops.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/relative_position.h"

namespace tessera::interop {
namespace {

void linear(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  std::vector<std::string> in = {step.in[0], step.in[1]};
  if (!step.in[2].empty()) in.push_back(step.in[2]);
  if (step.input(0).dim() == 2)
    return step.become(graph.node("Gemm", in, {{"transB", std::int64_t{1}}}), at::kFloat);
  std::string y = graph.node("MatMul", {in[0], graph.transpose(in[1], {1, 0})});
  if (in.size() > 2) y = graph.node("Add", {y, in[2]});
  step.become(y, at::kFloat);
}

/// Adds the branch to x; the sum is a second result.
std::string sum_of(const OnnxStep& step) {
  if (step.in[3].empty()) return step.in[0];
  step.graph.node_to({step.out.at(1)}, "Add", {step.in[0], step.in[3]});
  return step.out[1];
}

void layer_norm(const OnnxStep& step) {
  std::vector<std::string> in = {sum_of(step), step.in[1]};
  if (!step.in[2].empty()) in.push_back(step.in[2]);
  step.become(step.graph.node(
      "LayerNormalization",
      in,
      {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(step.arg(4).toDouble())}}));
}

void rms_norm(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const std::string x = sum_of(step);
  const std::string squares =
      graph.node("ReduceMean",
                 {graph.node("Mul", {x, x})},
                 {{"axes", std::vector<std::int64_t>{-1}}, {"keepdims", std::int64_t{1}}});
  const std::string root =
      graph.node("Sqrt", {graph.node("Add", {squares, graph.real(step.arg(4).toDouble())})});
  step.become(graph.node("Mul", {graph.node("Div", {x, root}), step.in[1]}));
}

std::string activated(OnnxGraph& graph, const std::string& x, ops::Activation activation) {
  const auto node = [&](const char* op, const std::vector<std::string>& in) {
    return graph.node(op, in);
  };
  const auto times = [&](const std::string& a, double factor) {
    return node("Mul", {a, graph.real(factor)});
  };
  const auto half = [&](const std::string& share) {
    return node("Mul", {times(x, 0.5), node("Add", {share, graph.real(1.0)})});
  };
  switch (activation) {
    case ops::Activation::GeluTanh: {
      const std::string cube = node("Mul", {node("Mul", {x, x}), x});
      const std::string inner = node("Add", {x, times(cube, 0.044715)});
      return half(node("Tanh", {times(inner, std::sqrt(2.0 / std::numbers::pi))}));
    }
    case ops::Activation::Gelu:
      return half(node("Erf", {times(x, std::sqrt(0.5))}));
    case ops::Activation::Relu:
      return node("Relu", {x});
    case ops::Activation::Silu:
      return node("Mul", {x, node("Sigmoid", {x})});
    case ops::Activation::QuickGelu:
      return node("Mul", {x, node("Sigmoid", {times(x, 1.702)})});
    case ops::Activation::SquaredRelu: {
      const std::string y = node("Relu", {x});
      return node("Mul", {y, y});
    }
  }
  return x;
}
ops::Activation activation_arg(const OnnxStep& step) {
  return static_cast<ops::Activation>(step.arg(1).toInt());
}

void activate(const OnnxStep& step) {
  step.become(activated(step.graph, step.in[0], activation_arg(step)));
}

void gated(const OnnxStep& step) {
  const std::int64_t width = step.result().size(-1), dim = step.result().dim() - 1;
  const auto part = [&](std::int64_t from) {
    return step.graph.slice(step.in[0], dim, OnnxSize::fixed(from), OnnxSize::fixed(from + width));
  };
  const std::string gate = activated(step.graph, part(0), activation_arg(step));
  step.become(step.graph.node("Mul", {gate, part(width)}));
}

void embedding(const OnnxStep& step) {
  step.become(step.graph.node("Gather", {step.in[0], step.in[1]}, {{"axis", std::int64_t{0}}}));
}

/// Angles in fp64, brought into one turn before they become fp32, so that the sines of late
/// positions keep their digits.
void rotary_table(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const std::string places =
      graph.unsqueeze(graph.cast(step.in[0], at::kDouble), {step.input(0).dim()});
  const std::vector<double> frequencies = step.arg(1).toDoubleVector();
  const std::string angles =
      graph.node("Mul", {places, graph.constant(at::tensor(frequencies, at::kDouble))});
  const std::string turn = graph.number(2.0 * std::numbers::pi, at::kDouble);
  const std::string turns = graph.node("Floor", {graph.node("Div", {angles, turn})});
  const std::string within =
      graph.cast(graph.node("Sub", {angles, graph.node("Mul", {turns, turn})}), at::kFloat);
  const std::string factor = graph.real(step.arg(2).toDouble());
  graph.node_to({step.out.at(0)}, "Mul", {graph.node("Cos", {within}), factor});
  graph.node_to({step.out.at(1)}, "Mul", {graph.node("Sin", {within}), factor});
}

void rotary(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const std::int64_t pairs = step.input(1).size(-1), channels = step.result().size(-1);
  const bool interleaved = step.arg(3).toBool();
  const std::string cosine = graph.unsqueeze(step.in[1], {1}),
                    sine = graph.unsqueeze(step.in[2], {1});
  const auto part = [&](std::int64_t from, std::int64_t to, std::int64_t by) {
    return graph.slice(step.in[0], 3, OnnxSize::fixed(from), OnnxSize::fixed(to), by);
  };
  const std::string a = interleaved ? part(0, 2 * pairs, 2) : part(0, pairs, 1);
  const std::string b = interleaved ? part(1, 2 * pairs, 2) : part(pairs, 2 * pairs, 1);
  const auto product = [&](const std::string& x, const std::string& y) {
    return graph.node("Mul", {x, y});
  };
  const std::string first = graph.node("Sub", {product(a, cosine), product(b, sine)});
  const std::string second = graph.node("Add", {product(b, cosine), product(a, sine)});
  std::string turned;
  if (interleaved) {
    std::vector<OnnxSize> sizes = step.sizes_out();
    sizes.back() = OnnxSize::fixed(2 * pairs);
    turned = graph.reshape(graph.node("Concat",
                                      {graph.unsqueeze(first, {4}), graph.unsqueeze(second, {4})},
                                      {{"axis", std::int64_t{4}}}),
                           sizes);
  } else {
    turned = graph.node("Concat", {first, second}, {{"axis", std::int64_t{3}}});
  }
  if (2 * pairs < channels) {
    turned =
        graph.node("Concat", {turned, part(2 * pairs, channels, 1)}, {{"axis", std::int64_t{3}}});
  }
  step.become(turned);
}

/// From max_distance on, all distances share a bucket, so a table of those before it has all.
void relative_buckets(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const ops::RelativeBuckets rule{step.arg(0).toInt(), step.arg(1).toInt(), step.arg(2).toBool()};
  const std::int64_t most = rule.max_distance;
  const std::string table = graph.constant(ops::relative_buckets(rule, -most, 2 * most + 1));
  const std::string distances =
      graph.node("Add", {graph.range(step.size_arg(4)), graph.scalar(step.size_arg(3))});
  const std::string within = graph.node(
      "Max", {graph.node("Min", {distances, graph.integer(most)}), graph.integer(-most)});
  step.become(graph.node("Gather",
                         {table, graph.node("Add", {within, graph.integer(most)})},
                         {{"axis", std::int64_t{0}}}));
}

/// Repeats heads [B, G, S, K] for the queries that share them: [B, H, S, K].
std::string repeated(const OnnxStep& step, std::size_t i, std::int64_t heads) {
  const std::int64_t shared = step.input(i).size(1), each = heads / shared;
  if (each == 1) return step.in[i];
  const std::vector<OnnxSize> sizes = step.sizes_in(i);
  const std::string wide = step.graph.expand(
      step.graph.unsqueeze(step.in[i], {2}),
      {sizes[0], OnnxSize::fixed(shared), OnnxSize::fixed(each), sizes[2], sizes[3]});
  return step.graph.reshape(wide, {sizes[0], OnnxSize::fixed(heads), sizes[2], sizes[3]});
}

/// Adds the terms of ALiBi, of a bias and of padding to the scores [B, H, T, S].
std::string with_terms(const OnnxStep& step, std::string scores, const std::string& distance) {
  OnnxGraph& graph = step.graph;
  const auto node = [&](const char* op, const std::vector<std::string>& in) {
    return graph.node(op, in);
  };
  const std::vector<double> slopes = step.arg(10).toDoubleVector();
  if (!slopes.empty()) {
    const std::int64_t heads = step.input(0).size(1);
    const std::string each = graph.constant(
        at::tensor(slopes, at::kDouble).to(at::kFloat).narrow(0, 0, heads).view({heads, 1, 1}));
    scores = node("Add", {scores, node("Mul", {each, graph.cast(distance, at::kFloat)})});
  }
  if (!step.in[4].empty()) scores = node("Add", {scores, step.in[4]});
  if (!step.in[3].empty()) {
    const std::string padding = node("Sub", {graph.real(1.0), step.input_as(3, at::kFloat)});
    scores = node("Add",
                  {scores, node("Mul", {graph.unsqueeze(padding, {1, 2}), graph.real(-10000.0)})});
  }
  return scores;
}

void attention(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const auto node = [&](const char* op, const std::vector<std::string>& in) {
    return graph.node(op, in);
  };
  const at::Tensor& q = step.input(0);
  const std::int64_t heads = q.size(1), window = step.arg(8).toInt();
  const bool causal = step.arg(5).toBool();
  const double given = step.arg(7).toDouble(), softcap = step.arg(9).toDouble();
  const double scale = given != 0.0 ? given : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const std::string keys = graph.transpose(repeated(step, 1, heads), {0, 1, 3, 2});
  std::string scores = node("Mul", {node("MatMul", {step.in[0], keys}), graph.real(scale)});
  if (softcap != 0.0) {
    const std::string cap = graph.real(softcap);
    scores = node("Mul", {node("Tanh", {node("Div", {scores, cap})}), cap});
  }
  // Key minus query, [T, S].
  const std::string queries =
      node("Add", {graph.range(step.sizes_in(0)[2]), graph.scalar(step.size_arg(6))});
  const std::string distance =
      node("Sub",
           {graph.unsqueeze(graph.range(step.sizes_in(1)[2]), {0}), graph.unsqueeze(queries, {1})});
  scores = with_terms(step, scores, distance);
  std::vector<std::string> seen;
  if (causal) seen.push_back(node("LessOrEqual", {distance, graph.integer(0)}));
  if (window > 0 && causal) seen.push_back(node("Greater", {distance, graph.integer(-window)}));
  if (window > 0 && !causal)
    seen.push_back(node("LessOrEqual", {node("Abs", {distance}), graph.integer(window)}));
  if (!seen.empty()) {
    const std::string all = seen.size() == 1 ? seen[0] : node("And", {seen[0], seen[1]});
    scores = node("Where", {all, scores, graph.real(std::numeric_limits<float>::lowest())});
  }
  const std::string shares = graph.node("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  step.become(node("MatMul", {shares, repeated(step, 2, heads)}));
}

}  // namespace

const OnnxTable& onnx_layer_ops() {
  static const OnnxTable all = {
      {"tessera::activate", activate},
      {"tessera::attention", attention},
      {"tessera::embedding", embedding},
      {"tessera::gated", gated},
      {"tessera::layer_norm", layer_norm},
      {"tessera::linear", linear},
      {"tessera::relative_buckets", relative_buckets},
      {"tessera::rms_norm", rms_norm},
      {"tessera::rotary", rotary},
      {"tessera::rotary_table", rotary_table},
  };
  return all;
}

}  // namespace tessera::interop
