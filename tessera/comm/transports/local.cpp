// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/local.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>

#include <fmt/format.h>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/watchdog.h"

namespace tessera::comm {
namespace {

void check_device(const Span& span, const CallSite& site) {
  TESSERA_REQUIRE(span.device.kind == DeviceKind::Cpu,
                  Unsupported,
                  fmt::format("{}: this transport moves host memory only", describe(site)),
                  "copy the values to the host first");
  TESSERA_REQUIRE(span.data != nullptr || span.count == 0,
                  Bug,
                  fmt::format("{}: {} elements without memory", describe(site), span.count),
                  "run meta tensors in a shape_world()");
}

void check_dtypes(const Span& in, const Span& out, const CallSite& site) {
  check_device(in, site);
  check_device(out, site);
  TESSERA_REQUIRE(
      in.dtype == out.dtype,
      Shape,
      fmt::format("{}: input of {}, output of {}", describe(site), name(in.dtype), name(out.dtype)),
      "give both the same element type");
}

void check_reduction(Op op, DType dtype, const CallSite& site) {
  TESSERA_REQUIRE(
      can_reduce(op, dtype),
      Unsupported,
      fmt::format(
          "{}: the reduction {} of {} is not supported", describe(site), name(op), name(dtype)),
      "reduce F32, F64, BF16, I64, I32 or U8; BitOr only integers");
}

// Checks whole = ranks x part: input and output of a reduce-scatter, output and input of an
// all-gather.
void check_parts(const Group& group, std::size_t whole, std::size_t part, const CallSite& site) {
  TESSERA_REQUIRE(
      whole == part * static_cast<std::size_t>(group.size()),
      Shape,
      fmt::format(
          "{}: {} elements are not {} ranks x {}", describe(site), whole, group.size(), part),
      "pad the whole to a multiple of the ranks");
}

class CompletedWork final : public Work {
 public:
  explicit CompletedWork(ControlPage& control) : control_(control) {}
  bool done() override {
    throw_if_aborted(control_);
    return true;
  }
  void wait() override { throw_if_aborted(control_); }
  void wait_reusable() override { throw_if_aborted(control_); }

 private:
  ControlPage& control_;
};

}  // namespace

std::string_view name(Op op) noexcept {
  static constexpr std::array<std::string_view, 4> kNames = {"sum", "max", "min", "bitor"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string describe(const CallSite& site) {
  std::string_view file = site.file;
  if (const std::size_t slash = file.rfind('/'); slash != std::string_view::npos)
    file.remove_prefix(slash + 1);
  if (file.empty()) return site.what;
  return fmt::format("{} at {}:{}", site.what, file, site.line);
}

void check_reduce_scatter(
    const Group& group, const Span& in, const Span& out, Op op, const CallSite& site) {
  check_dtypes(in, out, site);
  check_reduction(op, in.dtype, site);
  check_parts(group, in.count, out.count, site);
}

void check_all_gather(const Group& group, const Span& in, const Span& out, const CallSite& site) {
  check_dtypes(in, out, site);
  check_parts(group, out.count, in.count, site);
}

void check_all_reduce(const Span& data, Op op, const CallSite& site) {
  check_device(data, site);
  check_reduction(op, data.dtype, site);
}

void check_broadcast(const Group& group, const Span& data, int root_index, const CallSite& site) {
  check_device(data, site);
  TESSERA_REQUIRE(root_index >= 0 && root_index < group.size(),
                  Shape,
                  fmt::format("{}: root {} of {} ranks", describe(site), root_index, group.size()),
                  fmt::format("choose a root from 0 to {}", group.size() - 1));
}

void check_all_to_all(const Group& group, const Span& in, const Span& out, const CallSite& site) {
  check_dtypes(in, out, site);
  check_parts(group, in.count, in.count / static_cast<std::size_t>(group.size()), site);
  TESSERA_REQUIRE(in.count == out.count,
                  Shape,
                  fmt::format("{}: {} elements in, {} out", describe(site), in.count, out.count),
                  "give both the same number of elements");
}

void check_all_to_all_v(const Group& group,
                        const Span& in,
                        const Span& out,
                        std::span<const std::int64_t> counts,
                        const CallSite& site) {
  check_dtypes(in, out, site);
  const auto size = static_cast<std::size_t>(group.size());
  const bool all = counts.size() == size * size &&
                   std::all_of(counts.begin(), counts.end(), [](auto count) { return count >= 0; });
  TESSERA_REQUIRE(all,
                  Shape,
                  fmt::format("{}: {} sizes for the parts of {} ranks, or a negative one",
                              describe(site),
                              counts.size(),
                              size),
                  fmt::format("give the sizes of {} parts, from each rank to each", size * size));
  const std::size_t sent = sent_parts(counts, group.size(), group.index).back();
  const std::size_t received = received_parts(counts, group.size(), group.index).back();
  TESSERA_REQUIRE(in.count == sent && out.count == received,
                  Shape,
                  fmt::format("{}: {} elements in, {} out, and the parts have {} and {}",
                              describe(site),
                              in.count,
                              out.count,
                              sent,
                              received),
                  "give memory of the size of the parts");
  const std::less<> before;
  const auto* from = static_cast<const std::byte*>(in.data);
  const auto* to = static_cast<const std::byte*>(out.data);
  TESSERA_REQUIRE(in.count == 0 || out.count == 0 || !before(to, from + in.bytes()) ||
                      !before(from, to + out.bytes()),
                  Shape,
                  fmt::format("{}: the output overlaps parts that peers read", describe(site)),
                  "use a separate output");
}

std::vector<std::size_t> sent_parts(std::span<const std::int64_t> counts, int size, int member) {
  std::vector<std::size_t> out = {0};
  for (int other = 0; other < size; ++other)
    out.push_back(out.back() + static_cast<std::size_t>(
                                   counts[static_cast<std::size_t>(member * size + other)]));
  return out;
}

std::vector<std::size_t> received_parts(std::span<const std::int64_t> counts,
                                        int size,
                                        int member) {
  std::vector<std::size_t> out = {0};
  for (int other = 0; other < size; ++other)
    out.push_back(out.back() + static_cast<std::size_t>(
                                   counts[static_cast<std::size_t>(other * size + member)]));
  return out;
}

void check_message(int rank, int ranks, int peer, const Span& data, const CallSite& site) {
  check_device(data, site);
  TESSERA_REQUIRE(
      peer >= 0 && peer < ranks && peer != rank,
      Shape,
      fmt::format(
          "{}: a message between rank {} and rank {} of {}", describe(site), rank, peer, ranks),
      "send only between two different ranks of the world");
}

void reduce_scatter_alone(const Span& in, const Span& out, Op op, Write mode) {
  const std::array<const void*, 2> inputs = {out.data, in.data};
  const auto used = std::span(inputs).subspan(mode == Write::Accumulate ? 0 : 1);
  reduce_arrays(op, in.dtype, out.data, used, in.count);
}

void copy_alone(const Span& in, const Span& out) {
  if (in.data == out.data || in.count == 0) return;
  const auto* from = static_cast<const std::byte*>(in.data);
  const auto* to = static_cast<const std::byte*>(out.data);
  const std::less_equal<> ends_before;
  if (ends_before(from + in.bytes(), to) || ends_before(to + in.bytes(), from)) {
    copy_bytes(out.data, in.data, in.bytes());
  } else {
    std::memmove(out.data, in.data, in.bytes());
  }
}

WorkPtr completed_work(ControlPage& control) {
  return std::make_unique<CompletedWork>(control);
}

}  // namespace tessera::comm
