// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/world.h"

#include <cstdlib>
#include <new>
#include <utility>

#include <unistd.h>

#include "tessera/comm/transports/solo.h"

namespace tessera::comm {
namespace {

template <class T>
Span span_of(std::vector<T>& values, DType dtype) {
  return {values.data(), values.size(), dtype, {}};
}

}  // namespace

World::World(int rank,
             mesh::Mesh mesh,
             std::shared_ptr<Transport> host,
             std::shared_ptr<Transport> tensors,
             std::shared_ptr<ControlPage> control)
    : rank_(rank),
      mesh_(mesh),
      control_(std::move(control)),
      host_transport_(std::move(host)),
      tensors_(std::move(tensors)) {
  RankLine& line = this->line();
  line.pid.store(static_cast<std::uint32_t>(getpid()));
  line.state.store(static_cast<std::uint32_t>(RankState::Running));
}

World::World(int rank,
             mesh::Mesh mesh,
             std::unique_ptr<Transport> transport,
             std::shared_ptr<ControlPage> control)
    : World(rank, mesh, std::move(transport), nullptr, std::move(control)) {}

World::World(int rank, mesh::Mesh mesh, std::unique_ptr<Transport> transport, ControlPage* control)
    : World(rank,
            mesh,
            std::move(transport),
            std::shared_ptr<ControlPage>(control, [](ControlPage*) {})) {}

World::World(const World& whole, int first, const mesh::Mesh& mesh, int number)
    : rank_(whole.rank_ - first),
      first_(whole.first_ + first),
      part_(number),
      mesh_(mesh),
      host_(whole.host_),
      control_(whole.control_),
      host_transport_(whole.host_transport_),
      tensors_(whole.tensors_) {}

World::~World() = default;

std::unique_ptr<World> World::part(int first, const mesh::Mesh& mesh, int number) {
  TESSERA_ASSERT(number > 0 && number != part_ && first >= 0 && first <= rank_ &&
                 rank_ < first + mesh.size() && first + mesh.size() <= size());
  return std::unique_ptr<World>(new World(*this, first, mesh, number));
}

// The axes identify the group: the id is the same on every rank, regardless of the order in which
// groups are first used, and different for every group that a rank is in, because the parts of a
// world that it is in have other numbers.
const Group& World::group(mesh::AxisSet axes) {
  const auto [found, added] = groups_.try_emplace(axes.bits());
  if (added) {
    constexpr int kIdsOfPart = 1 << mesh::kNumAxes;
    found->second.ranks = mesh_.group(rank_, axes);
    for (int& rank : found->second.ranks)
      rank += first_;
    found->second.index = mesh_.index(rank_, axes);
    found->second.id = part_ * kIdsOfPart + axes.bits();
  }
  return found->second;
}

void World::set_step(std::int64_t step) {
  line().step.store(step, std::memory_order_relaxed);
}

void World::show_life() noexcept {
  line().work.fetch_add(1, std::memory_order_relaxed);
  keep_alive();
}

void World::keep_alive() noexcept {
  line().life.fetch_add(1, std::memory_order_relaxed);
}

void World::barrier(CallSite site) {
  host_transport_->barrier(everyone(), std::move(site))->wait();
}

ActivityScope::ActivityScope(World& world, Activity activity) noexcept
    : line_(world.line()), before_(line_.activity.load(std::memory_order_relaxed)) {
  line_.activities.fetch_add(1, std::memory_order_relaxed);
  line_.activity.store(static_cast<std::uint32_t>(activity), std::memory_order_relaxed);
}

ActivityScope::~ActivityScope() {
  line_.activity.store(before_, std::memory_order_relaxed);
  line_.activities.fetch_add(1, std::memory_order_relaxed);
}

std::vector<double> World::all_reduce(const Group& group,
                                      std::vector<double> values,
                                      Op op,
                                      CallSite site) {
  if (op != Op::BitOr) {
    host_transport_->all_reduce(group, span_of(values, DType::F64), op, std::move(site))->wait();
    return values;
  }
  std::vector<std::int64_t> bits(values.begin(), values.end());
  host_transport_->all_reduce(group, span_of(bits, DType::I64), op, std::move(site))->wait();
  return {bits.begin(), bits.end()};
}

std::vector<double> World::all_gather(const Group& group,
                                      const std::vector<double>& values,
                                      CallSite site) {
  std::vector<double> mine = values;
  std::vector<double> all(values.size() * static_cast<std::size_t>(group.size()));
  host_transport_
      ->all_gather(group, span_of(mine, DType::F64), span_of(all, DType::F64), std::move(site))
      ->wait();
  return all;
}

std::shared_ptr<ControlPage> private_control_page(int ranks) {
  constexpr std::align_val_t kAlign{alignof(ControlPage)};
  const std::size_t bytes = ControlPage::bytes(ranks);
  void* const memory = ::operator new(bytes, kAlign);
  return {ControlPage::format(memory, ranks),
          [](ControlPage* page) { ::operator delete(page, kAlign); }};
}

std::unique_ptr<World> solo_world() {
  std::shared_ptr<ControlPage> control = private_control_page(1);
  auto transport = make_solo_transport(control.get());
  return std::make_unique<World>(
      0, mesh::Mesh::data_parallel(1), std::move(transport), std::move(control));
}

}  // namespace tessera::comm
