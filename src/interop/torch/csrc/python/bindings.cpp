// The module stretto_torch._C. torch.distributed must be imported first, because it registers the base classes.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "process_group.hpp"
#include "symmetric_memory.hpp"

namespace py = pybind11;
using stretto_torch::ProcessGroupStretto;

PYBIND11_MODULE(_C, module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch.distributed");

  py::class_<stretto::ErrorFeedback, std::shared_ptr<stretto::ErrorFeedback>>(module, "ErrorFeedback").def(py::init<>());

  using stretto_torch::GroupMove;
  py::class_<GroupMove, std::shared_ptr<GroupMove>>(module, "GroupMove")
      .def(py::init<int, const std::vector<int>&, const std::vector<stretto_torch::GivenTensor>&, std::int64_t>(),
           py::arg("rank"), py::arg("nodes"), py::arg("tensors"), py::arg("max_buffer_bytes"))
      .def("boxes", &GroupMove::boxes, py::arg("tensor"), py::arg("behind"))
      .def("bytes_sent", &GroupMove::bytes_sent);

  py::class_<ProcessGroupStretto, c10::intrusive_ptr<ProcessGroupStretto>, stretto_torch::Base>(module,
                                                                                                "ProcessGroupStretto")
      .def(py::init([](const stretto_torch::StorePtr& store, int rank, int size, stretto_torch::Milliseconds timeout) {
             const py::gil_scoped_release while_ranks_meet;
             return c10::make_intrusive<ProcessGroupStretto>(store, rank, size, timeout);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"))
      .def(
          "monitored_barrier",
          [](ProcessGroupStretto& group, stretto_torch::Milliseconds timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            group.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false, Release())
      .def("quantized_average", &ProcessGroupStretto::quantized_average, py::arg("tensor"), py::arg("format"),
           py::arg("result") = "none", py::arg("errors") = py::none(), py::arg("name") = "", Release())
      .def("nodes", &ProcessGroupStretto::nodes)
      .def("move", &ProcessGroupStretto::move, py::arg("move"), py::arg("inputs"), py::arg("outputs"), Release());

  module.def("enter_symmetric_memory", &stretto_torch::enter_symmetric_memory);
  module.def("leave_symmetric_memory", &stretto_torch::leave_symmetric_memory);
  module.def("leave_all", &stretto_torch::leave_all, py::arg("reason"), Release());
}
