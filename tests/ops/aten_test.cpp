// SPDX-License-Identifier: Apache-2.0
// The backend of plain ATen operations is the reference of every other one: here the CPU's kernels
// are held against it, operation by operation, through the interface that both implement.
#include <functional>
#include <string>
#include <vector>

#include "ops/support.h"
#include "ops/updates.h"

#include "tessera/ops/aten/backend.h"
#include "tessera/ops/backend.h"

namespace tessera::ops {
namespace {

using Run = std::function<Results(const Backend&)>;
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

const Backend& cpu_backend() {
  return *backends().get("cpu");
}
const Backend& aten_backend() {
  return *backends().get("aten");
}

/// Both round once to `dtype`; sums of `terms` products in fp32 differ by a rounding of each, and
/// our exponential is exact to a few of its last places.
double tolerance(at::ScalarType dtype, std::int64_t terms = 1) {
  return 2 * epsilon(dtype) + static_cast<double>(terms + 8) * 0x1p-23;
}

void expect_agreement(const Run& run, double within) {
  const Results ours = run(cpu_backend()), reference = run(aten_backend());
  ASSERT_EQ(ours.size(), reference.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    EXPECT_EQ(ours[i].sizes(), reference[i].sizes());
    EXPECT_EQ(ours[i].scalar_type(), reference[i].scalar_type());
    expect_close(ours[i], doubles(reference[i]), within);
  }
}

void expect_same_bits(const Run& run) {
  const Results ours = run(cpu_backend()), reference = run(aten_backend());
  ASSERT_EQ(ours.size(), reference.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(same_bits(ours[i], reference[i])) << "result " << i;
}

TEST(AtenBackend, IsFoundByItsNameAndByDevicesWithoutKernelsOfTheirOwn) {
  EXPECT_TRUE(aten_backend().runs_on(c10::DeviceType::CUDA));
  EXPECT_FALSE(cpu_backend().runs_on(c10::DeviceType::CUDA));
  EXPECT_EQ(&backend(c10::Device(c10::DeviceType::XPU)), &aten_backend());
}

TEST(AtenBackend, AgreesOnFourBitsToTheBit) {
  const at::Tensor x = random({3 * 64 + 10}, 4) * random({3 * 64 + 10}, 5);
  const auto codes = [&](const Backend& b) -> Results {
    const at::Tensor four = at::empty({4 * 32}, at::kByte), scales = at::empty({4}, at::kFloat);
    b.narrow_nf4(x, four, scales);
    return {four, scales};
  };
  expect_same_bits(codes);
  const Results four = codes(cpu_backend());
  for (const at::ScalarType dtype : kDtypes) {
    expect_same_bits([&](const Backend& b) -> Results {
      const at::Tensor out = at::empty({x.numel()}, dtype);
      b.widen_nf4(four[0], four[1], out);
      return {out};
    });
  }
}

TEST(AtenBackend, AgreesOnActivations) {
  // gelu takes the exponential of up to this number, whose rounding it multiplies.
  constexpr std::int64_t kExponent = 26;
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::string& name : activation_names()) {
      SCOPED_TRACE(name + " of " + c10::toString(dtype));
      const Activation activation = activation_from_name(name);
      const at::Tensor x = random({5, 14}, 1, dtype) * 6, dy = random({5, 14}, 2, dtype);
      const at::Tensor dhalf = random({5, 7}, 3, dtype);
      expect_agreement(
          [&](const Backend& on) -> Results {
            const Results out = {
                at::empty_like(x), at::empty_like(x), at::empty_like(dhalf), at::empty_like(x)};
            on.activate(x, activation, out[0]);
            on.activate_backward(dy, x, activation, out[1]);
            on.gated(x, activation, out[2]);
            on.gated_backward(dhalf, x, activation, out[3]);
            return out;
          },
          tolerance(dtype, kExponent));
    }
  }
}

TEST(AtenBackend, AgreesOnLinearLayers) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t N : {3, 40}) {
      SCOPED_TRACE(std::to_string(N) + " rows of " + c10::toString(dtype));
      constexpr std::int64_t I = 37, O = 21;
      const at::Tensor x = random({N, I}, 1, dtype), weight = random({O, I}, 2, dtype),
                       bias = random({O}, 3, dtype), dy = random({N, O}, 4, dtype),
                       dw = random({O, I}, 5), db = random({O}, 6);
      expect_agreement(
          [&](const Backend& on) -> Results {
            return {on.linear(x, weight, bias, dtype), on.linear_input_grad(dy, weight)};
          },
          tolerance(dtype, I));
      expect_agreement(
          [&](const Backend& on) -> Results {
            const Results out = {on.linear(x, weight, {}, at::kFloat),
                                 dw.clone(),
                                 dw.clone(),
                                 db.clone(),
                                 db.clone()};
            on.linear_weight_grad(dy, x, /*accumulate=*/false, 0.5F, out[1]);
            on.linear_weight_grad(dy, x, /*accumulate=*/true, 1.0F, out[2]);
            on.linear_bias_grad(dy, /*accumulate=*/false, out[3]);
            on.linear_bias_grad(dy, /*accumulate=*/true, out[4]);
            return out;
          },
          tolerance(at::kFloat, N + I));
    }
  }
}

TEST(AtenBackend, AgreesOnEightBitMatrices) {
  const Int8Rows matrix = to_int8(random({12, 35}, 1));
  for (const at::ScalarType dtype : kDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = random({2, 35}, 2, dtype), bias = random({12}, 3);
    expect_agreement(
        [&](const Backend& on) -> Results {
          const at::Tensor wide = at::empty({12, 35}, dtype);
          on.widen_int8(matrix.rows_OI, matrix.scales_O, wide);
          return {wide, on.linear_int8(x, matrix, bias, dtype)};
        },
        tolerance(dtype, 35));
  }
}

TEST(AtenBackend, AgreesOnNorms) {
  constexpr std::int64_t N = 40, C = 33;
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool mean : {true, false}) {
      SCOPED_TRACE(std::string(mean ? "layer norm of " : "RMS norm of ") + c10::toString(dtype));
      const at::Tensor x = random({N, C}, 1, dtype), branch = random({N, C}, 2, dtype),
                       weight = random({C}, 3, dtype), bias = random({C}, 4, dtype), none,
                       dy = random({N, C}, 5, dtype), plus = random({N, C}, 6, dtype),
                       dweight = random({C}, 7), dbias = random({C}, 8);
      // Both start from the results of one backend, so that only one step's rounding is compared.
      const at::Tensor y = at::empty_like(x), sum = at::empty_like(x), rstd = at::empty({N}),
                       means = mean ? at::empty({N}) : none;
      expect_agreement(
          [&](const Backend& on) -> Results {
            on.norm({.x_NC = x,
                     .weight_C = weight,
                     .bias_C = mean ? bias : none,
                     .branch_NC = branch,
                     .eps = 1e-5,
                     .y_NC = y,
                     .mean_N = means,
                     .rstd_N = rstd,
                     .sum_NC = sum});
            Results out = {y.clone(), sum.clone(), rstd.clone()};
            if (mean) out.push_back(means.clone());
            return out;
          },
          tolerance(dtype, C));
      expect_agreement(
          [&](const Backend& on) -> Results {
            const Results out = {at::empty_like(x), dweight.clone(), dbias.clone()};
            on.norm_backward({.dy_NC = dy,
                              .x_NC = sum,
                              .mean_N = means,
                              .rstd_N = rstd,
                              .weight_C = weight,
                              .plus_NC = plus,
                              .dx_NC = out[0],
                              .dweight_C = out[1],
                              .dbias_C = mean ? out[2] : none,
                              .accumulate_weight = true,
                              .accumulate_bias = false});
            return out;
          },
          tolerance(dtype, N + C));
    }
  }
}

DropoutKey dropout_key() {
  return {.p = 0.3,
          .key = 0x1234567890abcdefULL,
          .sample_ids = {5, std::int64_t{1} << 40},
          .element_offset = 3};
}

struct AttentionCase {
  std::string name;
  std::int64_t queries, keys, groups;
  AttentionArgs args;
};
std::vector<AttentionCase> attention_cases() {
  const at::Tensor mask = int64s({1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0}).view({2, 7});
  AttentionArgs all{.causal = false}, offset{.query_offset = 2}, masked{.mask_BS = mask};
  AttentionArgs dropped{.dropout = dropout_key(), .first_head = 2};
  AttentionArgs placed{.causal = false, .scale = 0.5, .dropout = dropout_key()};
  placed.place =
      AttentionPlace{.tokens = 20, .queries = {{2, 4}, {9, 12}}, .keys = {{0, 3}, {10, 14}}};
  return {{"causal", 7, 7, 4, {}},
          {"all keys", 5, 7, 4, all},
          {"after a cache", 5, 7, 2, offset},
          {"one query", 1, 7, 2, all},
          {"with padding", 7, 7, 1, masked},
          {"with dropout", 7, 7, 2, dropped},
          {"with dropout of a part", 5, 7, 4, placed}};
}

TEST(AtenBackend, AgreesOnAttention) {
  constexpr std::int64_t B = 2, H = 4, K = 16;
  for (const at::ScalarType dtype : kDtypes) {
    for (const AttentionCase& c : attention_cases()) {
      SCOPED_TRACE(c.name + " of " + c10::toString(dtype));
      const at::Tensor q = random({B, H, c.queries, K}, 1, dtype),
                       k = random({B, c.groups, c.keys, K}, 2, dtype),
                       v = random({B, c.groups, c.keys, K}, 3, dtype),
                       dy = random({B, H, c.queries, K}, 4, dtype);
      AttentionOut out;
      // Kernels of 16-bit numbers round probabilities and their gradients too.
      const double within = 2 * tolerance(dtype, c.keys * K);
      expect_agreement(
          [&](const Backend& on) -> Results {
            out = on.attention(q, k, v, c.args);
            return {out.y_BHTK, out.saved};
          },
          within);
      expect_agreement(
          [&](const Backend& on) -> Results {
            const AttentionGrads d = on.attention_backward(dy, q, k, v, out, c.args);
            return {d.dq_BHTK, d.dk_BGSK, d.dv_BGSK};
          },
          within);
    }
  }
}

TEST(AtenBackend, DropsTheSameProbabilities) {
  constexpr std::int64_t B = 2, H = 3, T = 5, S = 8;
  AttentionArgs args{.causal = false, .dropout = dropout_key(), .first_head = 1};
  // Equal scores, and values that show which keys are kept.
  const at::Tensor q = at::zeros({B, H, T, S}), k = at::ones({B, H, S, S}),
                   v = at::eye(S).expand({B, H, S, S}).contiguous();
  const auto kept = [&](const Backend& on) { return on.attention(q, k, v, args).y_BHTK != 0; };
  const at::Tensor ours = kept(cpu_backend()), reference = kept(aten_backend());
  EXPECT_TRUE(ours.equal(reference));
  EXPECT_TRUE(ours.any().item<bool>() && !ours.all().item<bool>());
}

TEST(AtenBackend, DropsTheSameElementsToTheSameBits) {
  DropoutKey parts = dropout_key(), columns = dropout_key();
  parts.parts = {3, 1};
  columns.columns = 3;
  columns.column = 1;
  DropoutKey both = columns;
  both.parts = {2, 0};
  for (const at::ScalarType dtype : kDtypes) {
    for (const DropoutKey& key : {dropout_key(), parts, columns, both}) {
      SCOPED_TRACE(c10::toString(dtype));
      const at::Tensor x = random({2, 6, 11}, 1, dtype) + 2, plus = random({2, 6, 11}, 2, dtype);
      expect_same_bits([&](const Backend& on) -> Results {
        const Results out = {at::empty_like(x), at::empty_like(x)};
        on.dropout(x, {}, key, out[0]);
        on.dropout(x, plus, key, out[1]);
        return out;
      });
    }
  }
}

TEST(AtenBackend, AgreesOnTables) {
  const at::Tensor ids = int64s({3, 0, 3, 8, 1, 3});
  for (const at::ScalarType dtype : kDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor table = random({9, 5}, 1, dtype), dy = random({6, 5}, 2, dtype),
                     dw = random({9, 5}, 3);
    expect_agreement(
        [&](const Backend& on) -> Results {
          const Results out = {at::empty({6, 5}, table.options()), dw.clone(), dw.clone()};
          on.embedding(table, ids, out[0]);
          on.embedding_grad(dy, ids, /*accumulate=*/false, out[1]);
          on.embedding_grad(dy, ids, /*accumulate=*/true, out[2]);
          return out;
        },
        tolerance(at::kFloat, 6));
  }
  EXPECT_THROW(aten_backend().embedding(random({3, 2}, 1), int64s({3}), at::empty({1, 2})), Error);
}

TEST(AtenBackend, AgreesOnCrossEntropy) {
  constexpr std::int64_t N = 6, V = 1500;
  const at::Tensor logits = random({N, V}, 1) * 5,
                   labels = int64s({0, 7, kIgnoreLabel, V - 1, 7, kIgnoreLabel});
  for (const double smoothing : {0.0, 0.1}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      expect_agreement(
          [&](const Backend& on) -> Results {
            const at::Tensor x = logits.clone(),
                             d = dtype == at::kFloat ? x : at::empty({N, V}, dtype);
            const double alone =
                on.cross_entropy(logits.clone(), labels, smoothing, {}).item<double>();
            const double loss = on.cross_entropy(x, labels, smoothing, d).item<double>();
            return {at::tensor({alone, loss}, at::kDouble), d};
          },
          tolerance(dtype));
    }
  }
  expect_agreement(
      [&](const Backend& on) -> Results {
        const Results out = {
            logits.clone(), at::empty({N}, at::kDouble), at::empty({N}, at::kDouble)};
        on.exp_rows(out[0], out[1], out[2]);
        return out;
      },
      tolerance(at::kFloat));
}

TEST(AtenBackend, AgreesOnRotations) {
  const at::Tensor positions = int64s({0, 5, 1000, 3, 2, 70000}).view({2, 3});
  const std::vector<double> frequencies = rotary_frequencies(8, 10000.0);
  for (const at::ScalarType dtype : kDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = random({2, 4, 3, 10}, 1, dtype);
    expect_agreement(
        [&](const Backend& on) -> Results {
          const RotaryTable table = {at::empty({2, 3, 4}), at::empty({2, 3, 4})};
          on.rotary_table(positions, frequencies, table);
          const Results out = {at::empty_like(x), at::empty_like(x)};
          on.rotary(x, table, 1, out[0]);
          on.rotary(x, table, -1, out[1]);
          return {table.cosine_BTP, table.sine_BTP, out[0], out[1]};
        },
        tolerance(dtype));
  }
}

TEST(AtenBackend, DrawsTheSameTokens) {
  const at::Tensor logits = random({64}, 1) * 3;
  const at::Tensor equal = at::cat({logits, logits});
  for (const SamplerOptions& options : {SamplerOptions{.temperature = 0.0},
                                        SamplerOptions{},
                                        SamplerOptions{.temperature = 0.7, .top_k = 5},
                                        SamplerOptions{.top_p = 0.8},
                                        SamplerOptions{.top_k = 20, .top_p = 0.5}}) {
    for (std::int64_t position = 0; position < 50; ++position) {
      EXPECT_EQ(cpu_backend().sample_token(equal, 100, options, 7, position),
                aten_backend().sample_token(equal, 100, options, 7, position));
    }
  }
}

// The operations and their order are the same, and no elements are summed: a device that rounds
// according to IEEE 754 computes the same bits.
TEST(AtenBackend, UpdatesWeightsToTheSameBits) {
  for (const auto& [name, update] : all_updates()) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      SCOPED_TRACE(name + " with a working copy of " + std::string(tessera::name(dtype)));
      expect_same_bits([&, &update = update](const Backend& on) {
        const UpdatedRange data(dtype);
        update(on, data);
        return data.all();
      });
    }
  }
}

TEST(AtenBackend, AgreesOnSumsOfSquares) {
  const LambStep lamb = {.correction1 = 0.2, .correction2 = 0.1, .l2 = 0.05, .weight_decay = 0.1};
  expect_agreement(
      [&](const Backend& on) -> Results {
        const UpdatedRange data(DType::F32);
        const Results sums = {at::empty({25}, at::kDouble),
                              at::empty({3}, at::kDouble),
                              at::empty({3}, at::kDouble),
                              at::empty({50}, at::kDouble)};
        const auto of = [&](std::size_t i) { return sums[i].data_ptr<double>(); };
        on.chunk_square_sums(data.range.grad, 2490, 100, of(0), c10::DeviceType::CPU);
        on.lamb_prepare(
            data.range, data.state(data.first), data.state(data.second), lamb, of(1), of(2));
        on.column_square_sums(data.range.grad, 50, 50, of(3), c10::DeviceType::CPU);
        return sums;
      },
      1e-12);
}

TEST(AtenBackend, FindsTheFirstElementThatIsNotFinite) {
  const at::Tensor x = random({2000}, 1);
  const auto find = [&](const Backend& on) {
    return on.first_nonfinite(x.data_ptr<float>(), x.numel(), c10::DeviceType::CPU);
  };
  EXPECT_EQ(find(aten_backend()), -1);
  x[1234] = INFINITY;
  x[1500] = NAN;
  EXPECT_EQ(find(aten_backend()), 1234);
  EXPECT_EQ(find(cpu_backend()), 1234);
}

}  // namespace
}  // namespace tessera::ops
