// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/measure.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/comm/transports/local.h"

namespace tessera::comm {
namespace {

/// Two vectors of equal length, in regions or in ordinary memory of this rank.
class Buffers {
 public:
  Buffers(World& world, std::size_t count, bool in_regions) : count_(count) {
    if (in_regions) {
      for (RegionPtr& region : regions_)
        region = world.transport().allocate(count * sizeof(float), memory::Tag::Other);
    } else {
      for (auto& vector : private_)
        vector = std::make_unique<float[]>(count);
    }
    std::fill_n(static_cast<float*>(in().data), count, static_cast<float>(world.rank() + 1));
    std::fill_n(static_cast<float*>(out().data), count, 0.0F);
  }
  [[nodiscard]] Span in() const { return span(0); }
  [[nodiscard]] Span out() const { return span(1); }

 private:
  [[nodiscard]] Span span(std::size_t i) const {
    void* data = regions_[i] ? regions_[i]->data() : private_[i].get();
    return {.data = data, .count = count_};
  }
  std::size_t count_;
  RegionPtr regions_[2];
  std::unique_ptr<float[]> private_[2];
};

/// One call of an operation; the inputs may be rewritten when it returns.
using Call = void (*)(Transport&, const Group&, const Buffers&);

void finish(const WorkPtr& work) {
  work->wait();
  work->wait_reusable();
}
std::size_t part_of(const Group& group, const Buffers& buffers) {
  return buffers.in().count / static_cast<std::size_t>(group.size());
}

void all_reduce(Transport& transport, const Group& group, const Buffers& buffers) {
  finish(transport.all_reduce(group, buffers.out(), Op::Sum, TESSERA_HERE("measure")));
}
void reduce_scatter(Transport& transport, const Group& group, const Buffers& buffers) {
  finish(transport.reduce_scatter(group,
                                  buffers.in(),
                                  buffers.out().part(0, part_of(group, buffers)),
                                  Op::Sum,
                                  Write::Store,
                                  TESSERA_HERE("measure")));
}
void all_gather(Transport& transport, const Group& group, const Buffers& buffers) {
  finish(transport.all_gather(group,
                              buffers.in().part(0, part_of(group, buffers)),
                              buffers.out(),
                              TESSERA_HERE("measure")));
}
void broadcast(Transport& transport, const Group& group, const Buffers& buffers) {
  finish(transport.broadcast(group, buffers.out(), 0, TESSERA_HERE("measure")));
}
void all_to_all(Transport& transport, const Group& group, const Buffers& buffers) {
  finish(transport.all_to_all(group, buffers.in(), buffers.out(), TESSERA_HERE("measure")));
}
/// The sizes of parts of which the last rank gets `skew` times as many elements as each of the
/// others, as the owner of popular experts does: `count` in total.
std::vector<std::int64_t> counts_of(int ranks, std::size_t count, std::int64_t skew) {
  const std::int64_t others = static_cast<std::int64_t>(count) / (ranks * skew);
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks), others);
  of_rank.back() = others * skew;
  std::vector<std::int64_t> out;
  for (int r = 0; r < ranks; ++r)
    out.insert(out.end(), of_rank.begin(), of_rank.end());
  return out;
}
template <std::int64_t kSkew>
void all_to_all_v(Transport& transport, const Group& group, const Buffers& buffers) {
  const std::vector<std::int64_t> counts = counts_of(group.size(), buffers.in().count, kSkew);
  finish(transport.all_to_all_v(
      group,
      buffers.in().part(0, sent_parts(counts, group.size(), group.index).back()),
      buffers.out().part(0, received_parts(counts, group.size(), group.index).back()),
      counts,
      TESSERA_HERE("measure")));
}
// Sends to the next rank and receives from the previous one.
void send_recv(Transport& transport, const Group& group, const Buffers& buffers) {
  const int n = group.size();
  const auto member = [&](int index) { return group.ranks[static_cast<std::size_t>(index % n)]; };
  const WorkPtr sent =
      transport.send(member(group.index + 1), 0, buffers.in(), TESSERA_HERE("measure"));
  finish(transport.recv(member(group.index + n - 1), 0, buffers.out(), TESSERA_HERE("measure")));
  finish(sent);
}

/// The share of the vector that a rank sends or receives: all but its own part, twice that, or all
/// of it.
enum class Share { OthersParts, Twice, All };
double factor_of(Share share, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (share == Share::All) return 1.0;
  return share == Share::Twice ? 2.0 * others : others;
}

struct Case {
  const char* name;
  Call call;
  Share share;
};
constexpr Case kCases[] = {{"all-reduce", all_reduce, Share::Twice},
                           {"reduce-scatter", reduce_scatter, Share::OthersParts},
                           {"all-gather", all_gather, Share::OthersParts},
                           {"broadcast", broadcast, Share::All},
                           {"all-to-all", all_to_all, Share::OthersParts},
                           {"all-to-all-v", all_to_all_v<1>, Share::OthersParts},
                           {"all-to-all-v 4x", all_to_all_v<4>, Share::OthersParts},
                           {"send/recv", send_recv, Share::All}};

/// Returns the seconds that each of `calls` calls took.
double timed(World& world, Call call, const Buffers& buffers, int calls) {
  Transport& transport = world.transport();
  const Group& group = world.everyone();
  transport.barrier(group, TESSERA_HERE("measure"))->wait();
  const double begin = now_s();
  for (int c = 0; c < calls; ++c)
    call(transport, group, buffers);
  return (now_s() - begin) / calls;
}

/// Returns the largest value of any rank, so that all of them draw the same conclusion from it.
double most_of_all(World& world, double value) {
  return world.all_reduce(world.everyone(), {value}, Op::Max, TESSERA_HERE("measure")).front();
}

/// Measures within about `limit_s` seconds: at least one call in addition to the warm-up.
double median_seconds(
    World& world, Call call, const Buffers& buffers, int most_repetitions, double limit_s) {
  constexpr std::size_t kFewBytes = std::size_t{4} << 20, kManyBytes = std::size_t{64} << 20;
  const std::size_t bytes = buffers.in().bytes();
  const int most_calls = bytes > kManyBytes ? 1 : (bytes > kFewBytes ? 20 : 200);
  const double one = most_of_all(world, timed(world, call, buffers, 1));
  const auto fitting = [&](int most, double seconds) {
    return static_cast<int>(std::clamp(limit_s / seconds, 1.0, static_cast<double>(most)));
  };
  const int calls = fitting(most_calls, one * (most_repetitions + 1));
  const int rounds = fitting(most_repetitions + 1, one * calls);
  if (rounds > 1) timed(world, call, buffers, calls);  // warms up
  std::vector<double> seconds;
  for (int i = 0; i < std::max(1, rounds - 1); ++i)
    seconds.push_back(timed(world, call, buffers, calls));
  return median_of(std::move(seconds));
}

}  // namespace

std::size_t measure_memory(const MeasureOptions& options) {
  std::size_t most = 0;
  for (const std::size_t bytes : options.bytes)
    most = std::max(most, bytes);
  return (options.ordinary ? 4 : 2) *
         most;  // ordinary memory is copied into regions, which need the same amount again
}

std::vector<CollectiveSpeed> measure_collectives(
    World& world,
    const MeasureOptions& options,
    const std::function<void(const CollectiveSpeed&)>& on_each) {
  TESSERA_REQUIRE(world.size() > 1,
                  Config,
                  "a single rank has no collectives to measure",
                  "measure two ranks or more");
  TESSERA_ASSERT(options.repetitions > 0);
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<CollectiveSpeed> out;
  const double begin = now_s();
  const int memories = (options.in_regions ? 1 : 0) + (options.ordinary ? 1 : 0);
  auto left = static_cast<double>(memories * options.bytes.size() * std::size(kCases));
  for (const bool in_regions : {true, false}) {
    if (!(in_regions ? options.in_regions : options.ordinary)) continue;
    for (const std::size_t bytes : options.bytes) {
      const std::size_t count = bytes / sizeof(float) / ranks * ranks;
      TESSERA_REQUIRE(count > 0, Config, "the vector has less than one float per rank", "");
      const Buffers buffers(world, count, in_regions);
      for (const Case& what : kCases) {
        const double rest = options.seconds - most_of_all(world, now_s() - begin);
        out.push_back({.operation = what.name,
                       .bytes = count * sizeof(float),
                       .in_regions = in_regions,
                       .bus_factor = factor_of(what.share, world.size())});
        if (rest > 0) {
          out.back().seconds =
              median_seconds(world, what.call, buffers, options.repetitions, rest / left);
        }
        left -= 1;
        if (on_each && world.is_leader()) on_each(out.back());
      }
      world.transport().barrier(world.everyone(), TESSERA_HERE("measure"))->wait();
    }
  }
  return out;
}

}  // namespace tessera::comm
