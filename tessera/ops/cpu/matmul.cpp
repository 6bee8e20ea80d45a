// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/memory/meta_count.h"

namespace tessera::ops::cpu {
namespace {

using dnnl::memory;

memory::data_type type_of(const at::Tensor& x) {
  TESSERA_ASSERT(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
  return x.scalar_type() == at::kFloat ? memory::data_type::f32 : memory::data_type::bf16;
}

/// A dim with one element may have any stride, but oneDNN checks it.
memory::desc desc_of(const at::Tensor& x) {
  memory::dims strides = x.strides().vec();
  if (x.size(0) == 1) strides[0] = x.size(1) * strides[1];
  if (x.size(1) == 1) strides[1] = strides[0] == 1 ? x.size(0) : 1;
  return {x.sizes().vec(), type_of(x), strides};
}

/// The key of a cached primitive.
struct Key {
  std::array<std::int64_t, 15> words;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = 0;
    for (const std::int64_t word : key.words)
      hash = (std::rotl(hash, 7) ^ static_cast<std::size_t>(word)) * 0x9E3779B97F4A7C15ULL;
    return hash;
  }
};
Key key_of(const at::Tensor& a,
           const at::Tensor& b,
           const at::Tensor& c,
           const MatmulOptions& options) {
  const auto bias =
      options.bias_N.defined() ? static_cast<std::int64_t>(options.bias_N.scalar_type()) + 1 : 0;
  return {{a.size(0),
           a.size(1),
           b.size(1),
           a.stride(0),
           a.stride(1),
           b.stride(0),
           b.stride(1),
           c.stride(0),
           static_cast<std::int64_t>(a.scalar_type()),
           static_cast<std::int64_t>(c.scalar_type()),
           bias,
           options.accumulate ? 1 : 0,
           options.scale == 1.0F ? 0 : 1,
           at::get_num_threads(),
           at::in_parallel_region() ? 1 : 0}};
}

/// True if packing `b` into the library's own order pays off, because otherwise every block of rows
/// of `a` would copy it again. A column-major `a` is copied too, which costs more than that if sums
/// are short; and a second copy of a matrix as large as a vocabulary table does not pay off.
bool packs(const at::Tensor& a, const at::Tensor& b) {
  constexpr std::int64_t kRows = 1024, kRowsOfColumns = 2048, kMost = 1 << 24, kFromColumns = 768;
  if (b.numel() > kMost) return false;
  if (a.stride(1) != 1) return a.size(0) >= kFromColumns && a.size(1) >= kFromColumns;
  return a.size(0) >= (b.stride(1) == 1 ? kRows : kRowsOfColumns);
}

/// A product, and the operands that it is called with, whose addresses change from call to call: to
/// make them anew would take longer than a small product.
struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul run;
  std::optional<dnnl::reorder> pack;  ///< packs b
  memory a, b, c, bias, scale, scratch;
  memory plain_b;  ///< before it is packed
  std::unordered_map<int, memory> arguments;
};

/// The cache of primitives: they are expensive to create and cheap to keep; a step needs some
/// dozens.
class Library {
 public:
  /// Bytes of scratch memory and of a packed `b`.
  std::int64_t scratch(const at::Tensor& a,
                       const at::Tensor& b,
                       const at::Tensor& c,
                       const MatmulOptions& options) const {
    const dnnl::matmul::primitive_desc desc = describe(a, b, c, options);
    const std::size_t packed =
        desc.weights_desc() != desc_of(b) ? desc.weights_desc().get_size() : 0;
    return static_cast<std::int64_t>(packed + desc.scratchpad_desc().get_size());
  }
  const Primitive& primitive(const Key& key,
                             const at::Tensor& a,
                             const at::Tensor& b,
                             const at::Tensor& c,
                             const MatmulOptions& options) {
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    // An unbounded number of shapes, such as sequences of every length.
    if (primitives_.size() >= kMost) primitives_.clear();
    return primitives_.emplace(key, make(a, b, c, options)).first->second;
  }
  const dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kMost = 512;

  dnnl::matmul::primitive_desc describe(const at::Tensor& a,
                                        const at::Tensor& b,
                                        const at::Tensor& c,
                                        const MatmulOptions& options) const {
    dnnl::post_ops after;
    if (options.scale != 1.0F) {
      after.append_binary(dnnl::algorithm::binary_mul,
                          memory::desc({1, 1}, memory::data_type::f32, memory::format_tag::ab));
    }
    if (options.accumulate) after.append_sum(1.0F);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc bias =
        options.bias_N.defined()
            ? memory::desc({1, c.size(1)}, type_of(options.bias_N), memory::format_tag::ab)
            : memory::desc();
    const memory::desc plain = desc_of(b);
    const memory::desc any(plain.get_dims(), type_of(b), memory::format_tag::any);
    return {engine_, desc_of(a), packs(a, b) ? any : plain, bias, desc_of(c), attributes};
  }
  Primitive make(const at::Tensor& a,
                 const at::Tensor& b,
                 const at::Tensor& c,
                 const MatmulOptions& options) {
    dnnl::matmul::primitive_desc desc = describe(a, b, c, options);
    const memory::desc plain = desc_of(b);
    dnnl::matmul run(desc);
    std::optional<dnnl::reorder> pack;
    if (desc.weights_desc() != plain) {
      pack.emplace(dnnl::reorder::primitive_desc(engine_, plain, engine_, desc.weights_desc()));
    }
    const auto operand = [this](const memory::desc& of) { return memory(of, engine_, nullptr); };
    Primitive out = {.desc = desc,
                     .run = std::move(run),
                     .pack = std::move(pack),
                     .a = operand(desc.src_desc()),
                     .b = operand(desc.weights_desc()),
                     .c = operand(desc.dst_desc()),
                     .bias = {},
                     .scale = {},
                     .scratch = operand(desc.scratchpad_desc()),
                     .plain_b = operand(plain),
                     .arguments = {}};
    out.arguments = {{DNNL_ARG_SRC, out.a},
                     {DNNL_ARG_WEIGHTS, out.b},
                     {DNNL_ARG_DST, out.c},
                     {DNNL_ARG_SCRATCHPAD, out.scratch}};
    if (options.bias_N.defined()) {
      out.bias = operand(desc.bias_desc());
      out.arguments.emplace(DNNL_ARG_BIAS, out.bias);
    }
    if (options.scale != 1.0F) {
      out.scale = operand(memory::desc({1, 1}, memory::data_type::f32, memory::format_tag::ab));
      out.arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, out.scale);
    }
    return out;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<Key, Primitive, KeyHash> primitives_;
};

void run(const at::Tensor& a,
         const at::Tensor& b,
         const at::Tensor& c,
         const MatmulOptions& options) {
  thread_local Library library;
  const Primitive& primitive = library.primitive(key_of(a, b, c, options), a, b, c, options);
  const auto point = [](const memory& operand, const void* data) {
    memory(operand).set_data_handle(const_cast<void*>(data));
  };
  const auto room_for = [&](const memory::desc& what) {
    const auto bytes = static_cast<std::int64_t>(what.get_size());
    return bytes == 0 ? at::Tensor() : at::empty({bytes}, a.options().dtype(at::kByte));
  };
  const at::Tensor packed = primitive.pack ? room_for(primitive.desc.weights_desc()) : b;
  point(primitive.a, a.const_data_ptr());
  point(primitive.b, packed.const_data_ptr());
  point(primitive.c, c.const_data_ptr());
  if (primitive.pack) {
    point(primitive.plain_b, b.const_data_ptr());
    memory from = primitive.plain_b, to = primitive.b;
    primitive.pack->execute(library.stream(), from, to);
  }
  const at::Tensor scratch = room_for(primitive.desc.scratchpad_desc());
  if (scratch.defined()) point(primitive.scratch, scratch.const_data_ptr());
  if (options.bias_N.defined()) point(primitive.bias, options.bias_N.const_data_ptr());
  if (options.scale != 1.0F) point(primitive.scale, &options.scale);
  primitive.run.execute(library.stream(), primitive.arguments);
  library.stream().wait();
}

/// Longer sums, with row-major `b`, are computed in parts, because the library does not keep parts
/// of such long products in the cache.
constexpr std::int64_t kMostTerms = 1 << 15;

void run_in_parts(const at::Tensor& a,
                  const at::Tensor& b,
                  const at::Tensor& c,
                  const MatmulOptions& options) {
  const std::int64_t terms = a.size(1);
  const bool wide = c.scalar_type() == at::kFloat;
  const at::Tensor sums = wide ? c : at::empty(c.sizes(), c.options().dtype(at::kFloat));
  if (!wide && options.accumulate) sums.copy_(c);
  MatmulOptions part = options;
  for (std::int64_t begin = 0; begin < terms; begin += kMostTerms) {
    const std::int64_t count = std::min(kMostTerms, terms - begin);
    run(a.narrow(1, begin, count), b.narrow(0, begin, count), sums, part);
    part.accumulate = true;
    part.bias_N = at::Tensor();
  }
  if (!wide) c.copy_(sums);
}

}  // namespace

void matmul(const at::Tensor& a_MK,
            const at::Tensor& b_KN,
            const at::Tensor& c_MN,
            const MatmulOptions& options) {
  TESSERA_ASSERT(a_MK.scalar_type() == b_KN.scalar_type() &&
                 (a_MK.scalar_type() == at::kBFloat16 || c_MN.scalar_type() == at::kFloat));
  TESSERA_ASSERT(a_MK.size(1) == b_KN.size(0) && c_MN.size(0) == a_MK.size(0) &&
                 c_MN.size(1) == b_KN.size(1) && c_MN.stride(1) == 1);
  if (c_MN.numel() == 0) return;
  if (a_MK.size(1) == 0) {
    if (!options.accumulate) c_MN.zero_();
    if (options.bias_N.defined()) c_MN.add_(options.bias_N);
    return;
  }
  const bool long_sums = a_MK.size(1) > kMostTerms && b_KN.stride(1) == 1;
  try {
    (long_sums ? run_in_parts : run)(a_MK, b_KN, c_MN, options);
  } catch (const dnnl::error& error) {
    throw Error(Error::Kind::Bug,
                fmt::format("oneDNN refuses a product [{}, {}] x [{}, {}]: {}",
                            a_MK.size(0),
                            a_MK.size(1),
                            b_KN.size(0),
                            b_KN.size(1),
                            error.what()));
  }
}

std::int64_t matmul_scratch(const at::Tensor& a_MK,
                            const at::Tensor& b_KN,
                            at::ScalarType out,
                            const MatmulOptions& options) {
  if (a_MK.numel() == 0 || b_KN.numel() == 0) return 0;
  const bool in_parts = a_MK.size(1) > kMostTerms && b_KN.stride(1) == 1;
  const tessera::memory::NotCounted uncounted;  // the result is the caller's
  const at::Tensor c =
      at::empty({a_MK.size(0), b_KN.size(1)},
                at::TensorOptions().dtype(in_parts ? at::kFloat : out).device(at::kMeta));
  const std::int64_t sums = in_parts && out != at::kFloat ? 4 * c.numel() : 0;
  const std::int64_t terms = std::min(a_MK.size(1), in_parts ? kMostTerms : a_MK.size(1));
  static const Library library;
  return sums + library.scratch(a_MK.narrow(1, 0, terms), b_KN.narrow(0, 0, terms), c, options);
}

}  // namespace tessera::ops::cpu
