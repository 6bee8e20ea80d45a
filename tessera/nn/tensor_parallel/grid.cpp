// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/grid.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/three_d.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/nn/tensor_parallel/two_d.h"

namespace tessera::nn::grid {
namespace {

using namespace detail;

/// Message channel of a reduction to one rank.
constexpr int kReduce = 0x6772;

Range part_of(const Range& whole, mesh::Axis axis, int index, const mesh::Mesh& mesh) {
  const auto [begin, end] = mesh::even_cut(whole.count, 1, mesh.size(axis), index);
  return {whole.begin + begin, end - begin};
}

int index_along(mesh::Axis axis, const TensorParallel& tensor) {
  return tensor.world->mesh().coordinate(tensor.world->rank(), axis);
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// `x` with room for `size` elements along `dim`, because all ranks send parts of equal size.
at::Tensor padded(const at::Tensor& x, std::int64_t dim, std::int64_t size) {
  if (x.size(dim) == size) return x;
  auto sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  const at::Tensor out = at::zeros(sizes, x.options());
  if (x.numel() > 0) out.narrow(dim, 0, x.size(dim)).copy_(x);
  return out;
}

/// The dim of a weight's matrix that is split over the ranks along the major axis of samples, or
/// -1.
std::int64_t shared_dim(const ParamInfo& info, mesh::Axis major) {
  for (const mesh::Split& split : info.spec.splits) {
    if (!split.axes.has(major)) continue;
    const bool last = split.dim + 1 == std::ssize(info.shape);
    TESSERA_ASSERT(last || split.dim == 0);
    return last ? 1 : 0;
  }
  return -1;
}

/// The size of each rank's part of that dim.
std::vector<std::int64_t> shares(const ParamInfo& info,
                                 std::int64_t dim,
                                 mesh::Axis major,
                                 const StepContext& context) {
  const std::size_t d = dim == 0 ? 0 : info.shape.size() - 1;
  std::vector<std::int64_t> out;
  for (const int rank : along({major}, context).ranks) {
    const mesh::Box box =
        mesh::local_box(info.shape, info.spec, context.tensor->world->mesh(), rank);
    out.push_back(box.end[d] - box.begin[d]);
  }
  return out;
}

bool is_3d(const StepContext& context) {
  return context.tensor->mode == TensorMode::ThreeD;
}

}  // namespace

Spread stream(TensorMode mode) {
  using enum mesh::Axis;
  return mode == TensorMode::ThreeD ? Spread{TpCol, TpDepth, TpRow} : Spread{TpDepth, TpCol, TpRow};
}

Spread inner(TensorMode mode) {
  using enum mesh::Axis;
  return mode == TensorMode::ThreeD ? Spread{TpCol, TpRow, TpDepth} : Spread{TpDepth, TpCol, TpRow};
}

Spread spread_of(const ParamInfo& info, TensorMode mode) {
  const bool between =
      std::find(info.axes.begin(), info.axes.end(), LogicalAxis::Embed) != info.axes.end();
  return between ? stream(mode) : inner(mode);
}

Range major_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor) {
  return part_of({0, batch}, spread.major, index_along(spread.major, tensor), tensor.world->mesh());
}

Range own_samples(std::int64_t batch, const Spread& spread, const TensorParallel& tensor) {
  return part_of(major_samples(batch, spread, tensor),
                 spread.minor,
                 index_along(spread.minor, tensor),
                 tensor.world->mesh());
}

std::vector<std::int64_t> minor_counts(std::int64_t batch,
                                       const Spread& spread,
                                       const TensorParallel& tensor) {
  const mesh::Mesh& mesh = tensor.world->mesh();
  const Range major = major_samples(batch, spread, tensor);
  std::vector<std::int64_t> out;
  for (int r = 0; r < mesh.size(spread.minor); ++r)
    out.push_back(part_of(major, spread.minor, r, mesh).count);
  return out;
}

const comm::Group& along(mesh::AxisSet axes, const StepContext& context) {
  TESSERA_ASSERT(context.tensor != nullptr);
  return context.tensor->world->group(axes);
}

const comm::Group& ranks_inside(const StepContext& context) {
  TESSERA_ASSERT(context.tensor != nullptr);
  return context.tensor->on_grid() ? along({inner(context.tensor->mode).channels}, context)
                                   : *context.tensor->group;
}

at::Tensor broadcast(const at::Tensor& own,
                     at::IntArrayRef sizes,
                     int root,
                     mesh::Axis axis,
                     StepContext& context,
                     const char* what) {
  const comm::Group& group = along({axis}, context);
  const at::Tensor data =
      group.index == root ? own.contiguous().view(sizes) : at::empty(sizes, own.options());
  if (group.size() == 1 || data.numel() == 0) return data;
  finish(context.tensor->world->transport().broadcast(
      group, span_of(data), root, site(context, what)));
  return data;
}

at::Tensor reduce(
    const at::Tensor& mine, int root, mesh::Axis axis, StepContext& context, const char* what) {
  const comm::Group& group = along({axis}, context);
  if (group.size() == 1) return mine;
  const at::Tensor own = reducible(mine);
  comm::Transport& transport = context.tensor->world->transport();
  if (group.index != root) {
    // A copy is sent, so that this rank is done as soon as the send is posted.
    if (own.numel() > 0) {
      transport
          .send(group.ranks[static_cast<std::size_t>(root)],
                kReduce,
                span_of(own),
                site(context, what))
          ->wait();
    }
    // On meta tensors every rank goes on with the shape that the root has.
    if (!mine.is_meta()) return {};
  }
  if (own.numel() == 0) return mine;
  at::Tensor total;
  const at::Tensor other = at::empty_like(own);
  for (int r = 0; r < group.size(); ++r) {
    if (r != root) {
      transport
          .recv(group.ranks[static_cast<std::size_t>(r)],
                kReduce,
                span_of(other),
                site(context, what))
          ->wait();
    }
    const at::Tensor& term = r == root ? own : other;
    if (total.defined()) {
      total.add_(term);
    } else {
      total = at::empty(own.sizes(), own.options().dtype(at::kFloat)).copy_(term);
    }
  }
  return total.to(mine.scalar_type());
}

at::Tensor gather(const at::Tensor& own,
                  std::int64_t dim,
                  const std::vector<std::int64_t>& counts,
                  mesh::Axis axis,
                  StepContext& context,
                  const char* what) {
  const comm::Group& group = along({axis}, context);
  if (group.size() == 1) return own;
  auto sizes = own.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = sum_of(counts);
  const std::int64_t room = *std::max_element(counts.begin(), counts.end());
  const at::Tensor mine = padded(own, dim, room).contiguous();
  auto all_sizes = mine.sizes().vec();
  all_sizes.insert(all_sizes.begin(), group.size());
  const at::Tensor all = at::empty(all_sizes, own.options());
  if (all.numel() == 0) return at::empty(sizes, own.options());
  finish(context.tensor->world->transport().all_gather(
      group, span_of(mine), span_of(all), site(context, what)));
  if (dim == 0 && sum_of(counts) == room * group.size()) return all.view(sizes);
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < counts.size(); ++r)
    parts.push_back(all[static_cast<std::int64_t>(r)].narrow(dim, 0, counts[r]));
  return at::cat(parts, dim);
}

at::Tensor scatter(const at::Tensor& mine,
                   std::int64_t dim,
                   const std::vector<std::int64_t>& counts,
                   mesh::Axis axis,
                   StepContext& context,
                   const char* what) {
  const comm::Group& group = along({axis}, context);
  if (group.size() == 1) return mine;
  TESSERA_ASSERT(mine.size(dim) == sum_of(counts));
  const std::int64_t room = *std::max_element(counts.begin(), counts.end());
  const std::int64_t own = counts[static_cast<std::size_t>(group.index)];
  auto sizes = mine.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = room;
  at::Tensor parts;
  if (dim == 0 && sum_of(counts) == room * group.size()) {
    parts = reducible(mine);
  } else {
    std::vector<at::Tensor> list;
    std::int64_t begin = 0;
    for (const std::int64_t count : counts) {
      list.push_back(padded(mine.narrow(dim, begin, count), dim, room));
      begin += count;
    }
    parts = reducible(at::stack(list));
  }
  const at::Tensor out = at::empty(sizes, parts.options());
  if (out.numel() > 0) {
    finish(context.tensor->world->transport().reduce_scatter(group,
                                                             span_of(parts),
                                                             span_of(out),
                                                             comm::Op::Sum,
                                                             comm::Write::Store,
                                                             site(context, what)));
  }
  return out.narrow(dim, 0, own).to(mine.scalar_type());
}

at::Tensor sum(const at::Tensor& mine, mesh::AxisSet axes, StepContext& context, const char* what) {
  const comm::Group& group = along(axes, context);
  if (group.size() == 1 || mine.numel() == 0) return mine;
  at::Tensor total = reducible(mine);
  if (total.is_alias_of(mine)) total = total.clone();
  finish(context.tensor->world->transport().all_reduce(
      group, span_of(total), comm::Op::Sum, site(context, what)));
  return total.to(mine.scalar_type());
}

at::Tensor sum_over_samples(const at::Tensor& mine,
                            const ParamInfo& info,
                            StepContext& context,
                            const char* what) {
  return sum(mine, spread_of(info, context.tensor->mode).samples(), context, what);
}

at::Tensor whole_over_major(const at::Tensor& matrix,
                            const ParamInfo& info,
                            StepContext& context,
                            const char* what) {
  const mesh::Axis major = stream(context.tensor->mode).major;
  const std::int64_t dim = shared_dim(info, major);
  if (dim < 0) return matrix;
  return gather(matrix, dim, shares(info, dim, major, context), major, context, what);
}

at::Tensor sum_over_major(const at::Tensor& gradient,
                          const ParamInfo& info,
                          StepContext& context,
                          const char* what) {
  const mesh::Axis major = stream(context.tensor->mode).major;
  const std::int64_t dim = shared_dim(info, major);
  if (dim < 0) return sum(gradient, {major}, context, what);
  return scatter(gradient, dim, shares(info, dim, major, context), major, context, what);
}

at::Tensor by_samples(const at::Tensor& x) {
  std::int64_t rows = 1;  // rows of a sample; there may be no sample
  for (std::int64_t d = 1; d + 1 < x.dim(); ++d)
    rows *= x.size(d);
  return x.contiguous().view({x.size(0), rows, x.size(-1)});
}

at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context) {
  return is_3d(context) ? three_d::multiply(x_BRI, weight, info, out, context)
                        : two_d::multiply(x_BRI, weight, info, out, context);
}

at::Tensor gathered(const at::Tensor& dy_BRO, const ParamInfo& info, StepContext& context) {
  return is_3d(context) ? three_d::gathered(dy_BRO, info, context) : dy_BRO;
}

at::Tensor input_grad(const at::Tensor& gathered_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context) {
  return is_3d(context) ? three_d::input_grad(gathered_BRO, weight, info, context)
                        : two_d::input_grad(gathered_BRO, weight, info, context);
}

void weight_grad(const at::Tensor& gathered_BRO,
                 const at::Tensor& x_BRI,
                 const Param& weight,
                 float scale,
                 StepContext& context) {
  const at::Tensor grad =
      is_3d(context) ? three_d::weight_grad(gathered_BRO, x_BRI, weight.info(), scale, context)
                     : two_d::weight_grad(gathered_BRO, x_BRI, weight.info(), scale, context);
  weight.grad().write(grad.reshape(weight.grad().out().sizes()));
}

void cut_dropout(ops::DropoutKey& key, const StepContext& context) {
  const TensorParallel& tensor = *context.tensor;
  const Spread spread = stream(tensor.mode);
  const Range own = own_samples(std::ssize(key.sample_ids), spread, tensor);
  key.sample_ids = {key.sample_ids.begin() + own.begin,
                    key.sample_ids.begin() + own.begin + own.count};
  key.columns = tensor.world->mesh().size(spread.channels);
  key.column = index_along(spread.channels, tensor);
}

std::int64_t cut_attention(ops::AttentionArgs& args, const StepContext& context) {
  TESSERA_ASSERT(context.batch != nullptr);
  const Range own =
      own_samples(context.batch->size(), inner(context.tensor->mode), *context.tensor);
  for (at::Tensor* const of_samples : {&args.mask_BS, &args.starts_BT}) {
    if (of_samples->defined()) *of_samples = of_samples->narrow(0, own.begin, own.count);
  }
  if (!args.dropout.active()) return own.begin;
  const std::vector<std::int64_t>& ids = context.batch->sample_ids;
  args.dropout.sample_ids = {ids.begin() + own.begin, ids.begin() + own.begin + own.count};
  args.dropout.column = 0;
  args.dropout.columns = 1;
  return own.begin;
}

}  // namespace tessera::nn::grid
