// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/report/svg.h"

namespace tessera::report {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 20, kTop = 24, kBottom = 48;
constexpr std::size_t kMaxPoints = 1500;  // maximum points of a polyline; more are not visible
constexpr std::int64_t kMostTicks = 16;   // of an axis; tick_step() asks for about 6
/// Values that differ by less than this part of the largest are drawn as equal: their differences
/// are rounding.
constexpr double kFlat = 1e-12;

/// True for a value whose differences to other such values are finite.
bool is_drawn(double value) {
  constexpr double kLargest = 1e300;
  return std::abs(value) <= kLargest;  // false for a NaN
}

/// A plot area with margins for its axes, in data coordinates.
struct Frame {
  double x0 = 0, x1 = 1;
  double y0 = std::numeric_limits<double>::infinity();
  double y1 = -std::numeric_limits<double>::infinity();
  double left = 0, top = 0, width = kWidth, height = kHeight;  ///< in pixels, with the margins

  [[nodiscard]] double x(double step) const {
    return left + kLeft + (step - x0) / (x1 - x0) * (width - kLeft - kRight);
  }
  [[nodiscard]] double y(double value) const {
    return top + height - kBottom - (value - y0) / (y1 - y0) * (height - kTop - kBottom);
  }
  /// Widens the area to these points.
  void add(const std::vector<CurvePoint>& points) {
    for (const CurvePoint& point : points) {
      if (!is_drawn(point.value)) continue;
      x1 = std::max(x1, static_cast<double>(point.step));
      y0 = std::min(y0, point.value);
      y1 = std::max(y1, point.value);
    }
  }
  /// Adds margins above and below. Values that are never negative do not get an axis below 0.
  void finish() {
    if (!std::isfinite(y0)) y0 = y1 = 0.5;
    const double largest = std::max(std::abs(y0), std::abs(y1));
    if (y1 - y0 <= kFlat * largest) {
      const double room = std::max(0.5, kFlat * largest);
      y0 -= room;
      y1 += room;
    }
    const double margin = 0.05 * (y1 - y0), least = y0;
    y0 -= margin;
    if (least >= 0) y0 = std::max(0.0, y0);
    y1 += margin;
  }
};

/// 1, 2 or 5 times a power of ten, so that about `count` ticks fit.
double tick_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

/// The multiples of `step` from `low` to `high`, at most kMostTicks. They are counted, because the
/// sum of a number and a step below its rounding is the number.
std::vector<double> ticks(double low, double high, double step) {
  std::vector<double> out;
  const double first = std::ceil(low / step), last = std::floor(high / step);
  if (!std::isfinite(first) || !std::isfinite(last)) return out;
  for (std::int64_t i = 0; i < kMostTicks && first + static_cast<double>(i) <= last; ++i)
    out.push_back((first + static_cast<double>(i)) * step);
  return out;
}

/// The significant digits in which neighbouring ticks differ.
int digits_of(const Frame& frame, double step) {
  const double largest = std::max(std::abs(frame.y0), std::abs(frame.y1));
  return std::clamp(static_cast<int>(std::ceil(std::log10(largest / step))) + 1, 4, 15);
}

std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points) {
  // Exponential mean over about a fiftieth of the curve.
  const double alpha = 1.0 / std::max(1.0, static_cast<double>(points.size()) / 50.0);
  std::vector<CurvePoint> out;
  double mean = 0;
  for (const CurvePoint& point : points) {
    if (!is_drawn(point.value)) continue;
    mean = out.empty() ? point.value : mean + alpha * (point.value - mean);
    out.push_back({point.step, mean});
  }
  return out;
}

std::string polyline(const std::vector<CurvePoint>& points,
                     const Frame& frame,
                     const std::string& style) {
  std::string out = "<polyline fill=\"none\" " + style + " points=\"";
  const std::size_t every = std::max<std::size_t>(1, points.size() / kMaxPoints);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i % every != 0 && i + 1 != points.size()) continue;
    if (!is_drawn(points[i].value)) continue;
    out += fmt::format(
        "{:.1f},{:.1f} ", frame.x(static_cast<double>(points[i].step)), frame.y(points[i].value));
  }
  return out + "\"/>\n";
}

std::string axes(const Frame& frame) {
  std::string out;
  const double right = frame.left + frame.width - kRight;
  const double dy = tick_step(frame.y1 - frame.y0, 6);
  const int digits = digits_of(frame, dy);
  for (const double y : ticks(frame.y0, frame.y1, dy)) {
    out += fmt::format(
        "<line x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>",
        frame.left + kLeft,
        right,
        frame.y(y));
    // A tick next to 0 is 0 up to rounding.
    out += svg_label(frame.left + kLeft - 8,
                     frame.y(y) + 4,
                     "end",
                     fmt::format("{:.{}g}", std::abs(y) < 1e-9 * dy ? 0.0 : y, digits));
  }
  const double dx = std::max(1.0, tick_step(frame.x1 - frame.x0, 6));
  for (const double x : ticks(0, frame.x1, dx)) {
    out += svg_label(frame.x(x),
                     frame.top + frame.height - kBottom + 20,
                     "middle",
                     fmt::format("{}", static_cast<std::int64_t>(x)));
  }
  return out +
         svg_label(
             (frame.left + kLeft + right) / 2, frame.top + frame.height - 10, "middle", "step");
}

/// The name of the vertical axis.
std::string vertical_name(const Frame& frame, const std::string& name) {
  const double x = frame.left + 16, y = frame.top + frame.height / 2;
  return fmt::format(
      "<text x=\"{0:.0f}\" y=\"{1:.0f}\" transform=\"rotate(-90 {0:.0f} {1:.0f})\" "
      "text-anchor=\"middle\">{2}</text>\n",
      x,
      y,
      svg_escaped(name));
}

constexpr double kPanelWidth = 560, kPanelHeight = 300;
constexpr std::array<const char*, kMostCurvesOfAPanel> kColors = {
    "#1f5fa8", "#d9660c", "#2c8a3f", "#8a3fa8", "#b5202e", "#6b5b2e", "#0f8f9a", "#777777"};

std::string panel_plot(const CurvePanel& panel, double left, double top, double last_step) {
  Frame frame{.x1 = std::max(1.0, last_step),
              .left = left,
              .top = top,
              .width = kPanelWidth,
              .height = kPanelHeight};
  std::vector<std::vector<CurvePoint>> shown;
  for (const Curve& curve : panel.curves) {
    if (shown.size() == kMostCurvesOfAPanel) break;
    shown.push_back(smoothed(curve.points));
    frame.add(shown.back());
  }
  frame.finish();
  std::string out = axes(frame);
  out += svg_label(left + kLeft, top + kTop - 8, "start", panel.title);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    out +=
        polyline(shown[i], frame, fmt::format("stroke=\"{}\" stroke-width=\"2\"", kColors.at(i)));
    if (shown[i].empty()) continue;
    out += svg_label(
        left + kPanelWidth - kRight - 4,
        top + kTop + 10 + 16 * static_cast<double>(i),
        "end",
        fmt::format("{} {:.4g}", panel.curves[i].name, panel.curves[i].points.back().value),
        kColors.at(i));
  }
  return out;
}

}  // namespace

std::string loss_plot(const LossHistory& history) {
  Frame frame;
  frame.add(history.train);
  frame.add(history.eval);
  frame.finish();
  std::string out = axes(frame) + vertical_name(frame, "loss (nats a token)");
  out += polyline(history.train, frame, "stroke=\"#9db9d8\" stroke-width=\"1\"");
  out += polyline(smoothed(history.train), frame, "stroke=\"#1f5fa8\" stroke-width=\"2\"");
  if (!history.eval.empty())
    out += polyline(history.eval, frame, "stroke=\"#d9660c\" stroke-width=\"2\"");
  for (const CurvePoint& point : history.eval) {
    if (!is_drawn(point.value)) continue;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#d9660c\"/>\n",
                       frame.x(static_cast<double>(point.step)),
                       frame.y(point.value));
  }
  out += svg_label(kWidth - kRight - 4, kTop + 10, "end", "training", "#1f5fa8");
  if (!history.eval.empty()) {
    out += svg_label(kWidth - kRight - 4,
                     kTop + 28,
                     "end",
                     fmt::format("held out: {:.3f}", history.eval.back().value),
                     "#d9660c");
  }
  return svg_picture(kWidth, kHeight, out);
}

std::string panels_plot(const std::vector<CurvePanel>& panels) {
  constexpr std::size_t kColumns = 2;
  double last_step = 0;
  for (const CurvePanel& panel : panels) {
    for (const Curve& curve : panel.curves) {
      for (const CurvePoint& point : curve.points)
        last_step = std::max(last_step, static_cast<double>(point.step));
    }
  }
  std::string out;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    out += panel_plot(panels[i],
                      kPanelWidth * static_cast<double>(i % kColumns),
                      kPanelHeight * static_cast<double>(i / kColumns),
                      last_step);
  }
  const auto rows = static_cast<double>((panels.size() + kColumns - 1) / kColumns);
  return svg_picture(kPanelWidth * kColumns, kPanelHeight * rows, out);
}

void write_loss_plot(const std::filesystem::path& path, const LossHistory& history) {
  if (history.train.empty() && history.eval.empty()) return;
  files::write_atomic(path, loss_plot(history));
}

}  // namespace tessera::report
