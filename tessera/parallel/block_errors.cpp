// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/block_errors.h"

#include <cstddef>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

std::string given(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) return "";
  std::vector<std::string> shapes;
  for (const at::Tensor& input : inputs)
    shapes.push_back(shape_of(input));
  return fmt::format(" (its inputs are {})", fmt::join(shapes, ", "));
}

[[noreturn]] void throw_shape(const std::string& block,
                              const char* what,
                              std::string_view why,
                              const std::vector<at::Tensor>& inputs) {
  // libtorch's messages may end with a line break.
  while (!why.empty() && (why.back() == '\n' || why.back() == ' '))
    why.remove_suffix(1);
  throw Error(Error::Kind::Shape,
              fmt::format("{} of block {}: {}{}", what, block, why, given(inputs)),
              "check the sizes and types of what this block reads, multiplies and returns");
}

}  // namespace

void rethrow_in_block(const std::string& block,
                      const char* what,
                      const std::vector<at::Tensor>& inputs) {
  try {
    throw;
  } catch (const Error& error) {
    const std::string_view text = error.what();
    const Error::Kind kind = error.kind();
    if (kind == Error::Kind::Memory) {
      throw Error(kind,
                  fmt::format("out of memory in {} of block {}: {}", what, block, text),
                  error.fix(),
                  error.where());
    }
    const bool of_user = kind == Error::Kind::Shape || kind == Error::Kind::Config;
    if (!of_user || text.find(block) != std::string_view::npos) throw;
    throw Error(kind,
                fmt::format("{} of block {}: {}{}", what, block, text, given(inputs)),
                error.fix(),
                error.where());
  } catch (const c10::Error& error) {
    throw_shape(block, what, error.what_without_backtrace(), inputs);
  } catch (const std::logic_error& error) {
    throw_shape(block, what, error.what(), inputs);
  }
}

void check_outcome(const std::string& block, const nn::Outcome& outcome) {
  for (std::size_t i = 0; i < outcome.flow.diff.size(); ++i) {
    const at::Tensor& tensor = outcome.flow.diff[i];
    TESSERA_REQUIRE(tensor.defined(),
                    Shape,
                    fmt::format("block {} returns an undefined tensor as flow.diff[{}]", block, i),
                    "give every tensor of Outcome::flow a value");
    TESSERA_REQUIRE(tensor.is_floating_point(),
                    Shape,
                    fmt::format("block {} returns flow.diff[{}] of the type {}, through which no "
                                "gradient can flow",
                                block,
                                i,
                                c10::toString(tensor.scalar_type())),
                    "return integers in flow.fixed");
  }
  for (std::size_t i = 0; i < outcome.flow.fixed.size(); ++i) {
    TESSERA_REQUIRE(outcome.flow.fixed[i].defined(),
                    Shape,
                    fmt::format("block {} returns an undefined tensor as flow.fixed[{}]", block, i),
                    "give every tensor of Outcome::flow a value");
  }
  for (const nn::Term& term : outcome.terms) {
    TESSERA_REQUIRE(
        term.sum.defined(),
        Shape,
        fmt::format("block {}: the term \"{}\" of the loss has no value", block, term.name),
        "set Term::sum to the sum over the samples of the batch");
    TESSERA_REQUIRE(term.sum.dim() == 0,
                    Shape,
                    fmt::format("block {}: the term \"{}\" of the loss has the shape {}, and must "
                                "be a single number (0-d)",
                                block,
                                term.name,
                                shape_of(term.sum)),
                    "reduce it: Term::sum is the sum over the samples of the batch, such as "
                    "losses.sum()");
    TESSERA_REQUIRE(term.sum.is_floating_point(),
                    Shape,
                    fmt::format("block {}: the term \"{}\" of the loss is of the type {}",
                                block,
                                term.name,
                                c10::toString(term.sum.scalar_type())),
                    "sum it in fp32 or fp64");
  }
}

void check_rows(const std::string& block, const nn::Flow& flow, std::int64_t samples) {
  for (const auto* tensors : {&flow.diff, &flow.fixed}) {
    for (const at::Tensor& tensor : *tensors) {
      TESSERA_REQUIRE(
          tensor.dim() > 0 && tensor.size(0) == samples,
          Shape,
          fmt::format("block {} computes some samples at a time, and its input of the shape {} "
                      "does not have one row for each of the {} samples",
                      block,
                      shape_of(tensor),
                      samples),
          "let the blocks before it return one row for each sample, or let samples_at_once() "
          "return 0");
    }
  }
}

}  // namespace tessera::parallel
