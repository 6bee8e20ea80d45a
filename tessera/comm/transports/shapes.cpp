// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/shapes.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/transports/local.h"
#include "tessera/comm/watchdog.h"

namespace tessera::comm {
namespace {

class ShapeRegion final : public Region {
 public:
  explicit ShapeRegion(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] void* data() const override { return nullptr; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
};

class ShapeTransport final : public Transport {
 public:
  ShapeTransport(int rank, ControlPage& control) : rank_(rank), control_(control) {}
  std::vector<Posted> take() { return std::exchange(posted_, {}); }
  [[nodiscard]] std::string_view name() const override { return "shapes"; }
  RegionPtr allocate(std::size_t bytes, memory::Tag) override {
    return std::make_shared<ShapeRegion>(bytes);
  }

  WorkPtr reduce_scatter(const Group& group, Span in, Span, Op, Write write, CallSite) override {
    return post(Kind::ReduceScatter, group, in, write);
  }
  WorkPtr all_gather(const Group& group, Span, Span out, CallSite) override {
    return post(Kind::AllGather, group, out);
  }
  WorkPtr all_reduce(const Group& group, Span data, Op, CallSite) override {
    return post(Kind::AllReduce, group, data);
  }
  WorkPtr broadcast(const Group& group, Span data, int, CallSite) override {
    return post(Kind::Broadcast, group, data);
  }
  WorkPtr all_to_all(const Group& group, Span in, Span, CallSite) override {
    return post(Kind::AllToAll, group, in);
  }
  WorkPtr all_to_all_v(
      const Group& group, Span in, Span, std::span<const std::int64_t>, CallSite) override {
    return post(Kind::AllToAllV, group, in);
  }
  WorkPtr barrier(const Group& group, CallSite) override { return post(Kind::Barrier, group, {}); }
  WorkPtr send(int peer, int, Span data, CallSite) override {
    return post(Kind::Message, {rank_, peer}, data, Write::Store);
  }
  WorkPtr recv(int, int, Span, CallSite) override { return completed_work(control_); }

  void progress() noexcept override {}
  void abort(const Error& error) noexcept override { abort_world(control_, 0, error); }
  double take_comm_seconds() noexcept override { return 0; }
  [[nodiscard]] Traffic traffic() const noexcept override { return traffic_of(posted_); }
  [[nodiscard]] Traffic traffic(const Group&) const override { return {}; }
  [[nodiscard]] Traffic messages() const noexcept override { return {}; }
  void set_stall_limit(double) noexcept override {}

 private:
  WorkPtr post(Kind kind, const Group& group, const Span& vector, Write write = Write::Store) {
    return group.size() == 1 ? completed_work(control_) : post(kind, group.ranks, vector, write);
  }
  WorkPtr post(Kind kind, const std::vector<int>& ranks, const Span& vector, Write write) {
    const auto count = static_cast<std::int64_t>(vector.count);
    const auto known = std::find_if(posted_.begin(), posted_.end(), [&](const Posted& one) {
      return one.kind == kind && one.dtype == vector.dtype && one.count == count &&
             one.write == write && one.ranks == ranks;
    });
    if (known == posted_.end()) {
      posted_.push_back({kind, ranks, vector.dtype, count, write});
    } else {
      ++known->calls;
    }
    return completed_work(control_);
  }

  int rank_;
  ControlPage& control_;
  std::vector<Posted> posted_;
};

}  // namespace

std::unique_ptr<World> shape_world(const mesh::Mesh& mesh, int rank) {
  const std::shared_ptr<ControlPage> control = private_control_page(mesh.size());
  return std::make_unique<World>(
      rank, mesh, std::make_unique<ShapeTransport>(rank, *control), control);
}

std::vector<Posted> take_posted(World& world) {
  return dynamic_cast<ShapeTransport&>(world.transport()).take();
}

}  // namespace tessera::comm
