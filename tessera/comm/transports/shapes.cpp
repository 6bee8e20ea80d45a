// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/shapes.h"

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
  explicit ShapeTransport(ControlPage& control) : control_(control) {}
  [[nodiscard]] std::string_view name() const override { return "shapes"; }
  RegionPtr allocate(std::size_t bytes, memory::Tag) override {
    return std::make_shared<ShapeRegion>(bytes);
  }

  WorkPtr reduce_scatter(const Group&, Span, Span, Op, Write, CallSite) override { return done(); }
  WorkPtr all_gather(const Group&, Span, Span, CallSite) override { return done(); }
  WorkPtr all_reduce(const Group&, Span, Op, CallSite) override { return done(); }
  WorkPtr broadcast(const Group&, Span, int, CallSite) override { return done(); }
  WorkPtr all_to_all(const Group&, Span, Span, CallSite) override { return done(); }
  WorkPtr all_to_all_v(const Group&, Span, Span, std::span<const std::int64_t>, CallSite) override {
    return done();
  }
  WorkPtr barrier(const Group&, CallSite) override { return done(); }
  WorkPtr send(int, int, Span, CallSite) override { return done(); }
  WorkPtr recv(int, int, Span, CallSite) override { return done(); }

  void progress() noexcept override {}
  void abort(const Error& error) noexcept override { abort_world(control_, 0, error); }
  double take_comm_seconds() noexcept override { return 0; }
  [[nodiscard]] Traffic traffic() const noexcept override { return {}; }
  [[nodiscard]] Traffic traffic(const Group&) const override { return {}; }
  [[nodiscard]] Traffic messages() const noexcept override { return {}; }
  void set_stall_limit(double) noexcept override {}

 private:
  WorkPtr done() { return completed_work(control_); }
  ControlPage& control_;
};

}  // namespace

std::unique_ptr<World> shape_world(const mesh::Mesh& mesh, int rank) {
  const std::shared_ptr<ControlPage> control = private_control_page(mesh.size());
  return std::make_unique<World>(rank, mesh, std::make_unique<ShapeTransport>(*control), control);
}

}  // namespace tessera::comm
