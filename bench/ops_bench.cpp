// SPDX-License-Identifier: Apache-2.0
// Measures the operations of a GPT-2 step one by one, compared with the limits of memory bandwidth
// and arithmetic. usage: ops_bench [threads [float|bfloat16|half [name part]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/clock.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/matmul.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"
#include "tessera/ops/rotary.h"

namespace {

using namespace tessera;

struct Bench {
  std::string only;
  /// Best of several runs; `work` is in units of 1e9 (bytes or floating-point operations).
  void run(const std::string& name,
           double work,
           const char* unit,
           const std::function<void()>& fn) const {
    if (name.find(only) == std::string::npos) return;
    fn();
    double best = 1e9;
    const double end = now_s() + 0.5;
    for (int i = 0; i < 3 || now_s() < end; ++i) {
      const double start = now_s();
      fn();
      best = std::min(best, now_s() - start);
    }
    std::printf("%-28s %9.3f ms %8.1f %s\n", name.c_str(), best * 1e3, work / best / 1e9, unit);
  }

  struct Way {
    const char* name;
    std::function<void()> fn;
  };
  /// Runs several implementations of one operation alternately, so that they run at the same
  /// machine speed, and prints the best and the median of each.
  void by_turns(const std::string& name, double flop, const std::vector<Way>& ways) const {
    if (name.find(only) == std::string::npos) return;
    std::vector<std::vector<double>> times(ways.size());
    const double end = now_s() + 1.5;
    for (int i = -1; i < 7 || now_s() < end; ++i) {
      for (std::size_t w = 0; w < ways.size(); ++w) {
        const double start = now_s();
        ways[w].fn();
        if (i >= 0) times[w].push_back(now_s() - start);
      }
    }
    for (std::size_t w = 0; w < ways.size(); ++w) {
      std::sort(times[w].begin(), times[w].end());
      const double median = times[w][times[w].size() / 2];
      std::printf("%-28s %9.3f ms, median %9.3f ms %8.1f GFLOP/s %s\n",
                  name.c_str(),
                  times[w][0] * 1e3,
                  median * 1e3,
                  flop / median / 1e9,
                  ways[w].name);
    }
  }
};

constexpr std::int64_t kN = 2048, kC = 768, kV = 50304, kHeads = 12, kB = 4, kT = 512;

void linears(const Bench& bench, at::ScalarType dtype) {
  const at::Tensor x = at::randn({kN, kC}).to(dtype), w = at::randn({4 * kC, kC}).to(dtype);
  const at::Tensor bias = at::randn({4 * kC}).to(dtype), dy = at::randn({kN, 4 * kC}).to(dtype);
  const at::Tensor dw = at::zeros({4 * kC, kC}), db = at::zeros({4 * kC});
  const double flop = 2.0 * kN * kC * 4 * kC;
  bench.run("linear", flop, "GFLOP/s", [&] { ops::linear(x, w, bias); });
  bench.run("linear input grad", flop, "GFLOP/s", [&] { ops::linear_input_grad(dy, w); });
  bench.run(
      "linear weight grad", flop, "GFLOP/s", [&] { ops::linear_weight_grad(dy, x, dw, true); });
  bench.run("linear bias grad", static_cast<double>(dy.nbytes()), "GB/s", [&] {
    ops::linear_bias_grad(dy, db, true);
  });
}

void pointwise(const Bench& bench, at::ScalarType dtype) {
  const at::Tensor x = at::randn({kN, kC}).to(dtype), w = at::randn({kC}).to(dtype),
                   dw = at::zeros({kC});
  const at::Tensor wide = at::randn({kN, 4 * kC}).to(dtype);
  const auto norm = ops::layer_norm(x, w, w, 1e-5);
  const double bytes = static_cast<double>(x.nbytes());
  bench.run("layer norm", 2 * bytes, "GB/s", [&] { ops::layer_norm(x, w, w, 1e-5); });
  bench.run("layer norm grad", 3 * bytes, "GB/s", [&] {
    ops::layer_norm_backward(x, x, norm.mean_N, norm.rstd_N, w, dw, true, dw, true);
  });
  const at::Tensor rstd = ops::rms_norm(x, w, 1e-5).rstd_N;
  bench.run("rms norm", 2 * bytes, "GB/s", [&] { ops::rms_norm(x, w, 1e-5); });
  bench.run(
      "rms norm grad", 3 * bytes, "GB/s", [&] { ops::rms_norm_backward(x, x, rstd, w, dw, true); });
  bench.run("gelu", 8 * bytes, "GB/s", [&] { ops::activate(wide, ops::Activation::GeluTanh); });
  bench.run("gelu grad", 12 * bytes, "GB/s", [&] {
    ops::activate_backward(wide, wide, ops::Activation::GeluTanh);
  });
  const at::Tensor half = wide.narrow(1, 0, 2 * kC).contiguous();
  bench.run("swiglu", 6 * bytes, "GB/s", [&] { ops::gated(wide, ops::Activation::Silu); });
  bench.run("swiglu grad", 10 * bytes, "GB/s", [&] {
    ops::gated_backward(half, wide, ops::Activation::Silu);
  });
  const at::Tensor heads = x.view({kB, kT, kHeads, kC / kHeads}).transpose(1, 2);
  const ops::RotaryTable table = ops::rotary_table(at::arange(kT, at::kLong).view({1, kT}),
                                                   ops::rotary_frequencies(kC / kHeads, 10000.0));
  bench.run("rotary", 2 * bytes, "GB/s", [&] { ops::rotary(heads, table); });
  const ops::DropoutKey key{.p = 0.1, .key = 1, .sample_ids = {0, 1, 2, 3}};
  const at::Tensor batch = x.view({kB, kT, kC});
  bench.run("dropout", 2 * bytes, "GB/s", [&] { ops::dropout(batch, key); });
}

void losses(const Bench& bench, at::ScalarType dtype) {
  const at::Tensor table = at::randn({kV, kC}).to(dtype), x = at::randn({kN, kC}).to(dtype);
  const at::Tensor ids = at::randint(0, kV, {kN}, at::kLong), logits = at::randn({kN / 4, kV}),
                   dw = at::zeros({kV, kC});
  const at::Tensor labels = ids.slice(0, 0, kN / 4);
  bench.run("cross entropy", 2.0 * static_cast<double>(logits.nbytes()), "GB/s", [&] {
    ops::cross_entropy_(logits, labels, 0.0, true);
  });
  bench.run("embedding grad", 3.0 * static_cast<double>(x.nbytes()), "GB/s", [&] {
    ops::embedding_grad(x, ids, dw, true);
  });
  bench.run("head", 2.0 * kN / 4 * kC * kV, "GFLOP/s", [&] {
    ops::linear(x.slice(0, 0, kN / 4), table, {}, at::kFloat);
  });
}

/// The products of a step as linear.cpp computes them, compared with both libraries.
void libraries(const Bench& bench) {
  struct Size {
    const char* name;
    std::int64_t I, O;
  };
  for (const Size& size : {Size{"qkv", kC, 3 * kC},
                           Size{"projection", kC, kC},
                           Size{"up", kC, 4 * kC},
                           Size{"down", 4 * kC, kC},
                           Size{"vocabulary", kC, kV}}) {
    for (const std::int64_t N : {kN / 4, kN}) {
      const at::Tensor x = at::randn({N, size.I}).to(at::kBFloat16);
      const at::Tensor w = at::randn({size.O, size.I}).to(at::kBFloat16);
      const at::Tensor dy = at::randn({N, size.O}).to(at::kBFloat16);
      const at::Tensor y = at::empty_like(dy), dx = at::empty_like(x);
      const at::Tensor dw = at::zeros({size.O, size.I});
      const double flop = 2.0 * static_cast<double>(N * size.I * size.O);
      const std::string of = std::string(size.name) + " of " + std::to_string(N) + ": ";
      bench.by_turns("products " + of + "y",
                     flop,
                     {{"as it is", [&] { ops::linear(x, w); }},
                      {"oneDNN", [&] { ops::cpu::matmul(x, w.t(), y); }}});
      bench.by_turns("products " + of + "dx",
                     flop,
                     {{"as it is", [&] { ops::linear_input_grad(dy, w); }},
                      {"oneDNN", [&] { ops::cpu::matmul(dy, w, dx); }}});
      for (const bool add : {false, true}) {
        bench.by_turns("products " + of + (add ? "dw +=" : "dw ="),
                       flop,
                       {{"as it is", [&] { ops::linear_weight_grad(dy, x, dw, add); }},
                        {"oneDNN", [&] { ops::cpu::matmul(dy.t(), x, dw, {.accumulate = add}); }},
                        {"MKL", [&] { ops::cpu::gemm_to_fp32(dy, true, x, false, dw, add); }}});
      }
    }
  }
}

void attentions(const Bench& bench, at::ScalarType dtype) {
  const at::Tensor qkv = at::randn({3, kB, kHeads, kT, kC / kHeads}).to(dtype);
  const auto out = ops::attention(qkv[0], qkv[1], qkv[2], {});
  const double flop = 2.0 * kB * kT * kT * kC;  // two products, half of each is masked
  bench.run("attention", flop, "GFLOP/s", [&] { ops::attention(qkv[0], qkv[1], qkv[2], {}); });
  bench.run("attention grad", 2.5 * flop, "GFLOP/s", [&] {
    ops::attention_backward(qkv[0], qkv[0], qkv[1], qkv[2], out, {});
  });
  ops::AttentionArgs args;
  args.dropout = {.p = 0.1, .key = 1, .sample_ids = {0, 1, 2, 3}};
  const auto dropped = ops::attention(qkv[0], qkv[1], qkv[2], args);
  bench.run(
      "attention dropout", flop, "GFLOP/s", [&] { ops::attention(qkv[0], qkv[1], qkv[2], args); });
  bench.run("attention dropout grad", 2.5 * flop, "GFLOP/s", [&] {
    ops::attention_backward(qkv[0], qkv[0], qkv[1], qkv[2], dropped, args);
  });
}

void updates(const Bench& bench) {
  const std::int64_t n = 1 << 24;
  const at::Tensor s = at::rand({4, n}), working = at::empty({n}, at::kBFloat16);
  std::vector<double> sums(n / 1024);
  float* at = s.data_ptr<float>();
  bench.run("adamw", 30.0 * n, "GB/s", [&] {
    ops::adamw(at,
               at + n,
               at + 2 * n,
               at + 3 * n,
               static_cast<std::uint16_t*>(working.data_ptr()),
               DType::BF16,
               n,
               {.lr = 1e-4});
  });
  bench.run(
      "square sums", 4.0 * n, "GB/s", [&] { ops::chunk_square_sums(at, n, 1024, sums.data()); });
  bench.run("copy", 8.0 * n, "GB/s", [&] { s[0].copy_(s[1]); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string type = argc > 2 ? argv[2] : "float";
  const std::map<std::string, at::ScalarType> types{
      {"float", at::kFloat}, {"bfloat16", at::kBFloat16}, {"half", at::kHalf}};
  if (threads < 1 || !types.contains(type)) {
    std::fputs("usage: ops_bench [threads [float|bfloat16|half [name part]]]\n", stderr);
    return 2;
  }
  at::set_num_threads(threads);
  const at::ScalarType dtype = types.at(type);
  const Bench bench{argc > 3 ? argv[3] : ""};
  std::printf("%d threads, %s, %s kernels\n",
              at::get_num_threads(),
              c10::toString(dtype),
              std::string(ops::name(ops::isa())).c_str());
  linears(bench, dtype);
  pointwise(bench, dtype);
  losses(bench, dtype);
  const bool asked = bench.only.empty() || bench.only.rfind("products", 0) == 0;  // large tensors
  if (asked && dtype == at::kBFloat16 && ops::native_bf16() && ops::cpu::has_gemm_to_fp32(dtype))
    libraries(bench);
  attentions(bench, dtype);
  updates(bench);
  return 0;
}
