// Loads cuDNN at the first attention on a GPU. Its frontend, which is headers only, also calls NVRTC (a hundred megabytes)
// in engines that are not used here. The functions below have the names that the linker looks for.
#include <cudnn.h>
#include <nvrtc.h>

#include "core/lazy_library.hpp"

namespace stretto {
namespace {

constinit LazyLibrary cudnn{STRETTO_SONAME("cudnn", CUDNN_MAJOR), "Attention to 16-bit elements on a GPU"};
constinit LazyLibrary nvrtc{STRETTO_SONAME("nvrtc", STRETTO_CUDA_MAJOR), "Kernels that cuDNN compiles"};

}  // namespace
}  // namespace stretto

size_t cudnnGetVersion() { STRETTO_FORWARD(cudnn, cudnnGetVersion); }

const char* cudnnGetErrorString(cudnnStatus_t status) { STRETTO_FORWARD(cudnn, cudnnGetErrorString, status); }

void cudnnGetLastErrorString(char* message, size_t size) { STRETTO_FORWARD(cudnn, cudnnGetLastErrorString, message, size); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { STRETTO_FORWARD(cudnn, cudnnCreate, handle); }

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { STRETTO_FORWARD(cudnn, cudnnDestroy, handle); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  STRETTO_FORWARD(cudnn, cudnnSetStream, handle, stream);
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  STRETTO_FORWARD(cudnn, cudnnGetStream, handle, stream);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  STRETTO_FORWARD(cudnn, cudnnBackendCreateDescriptor, type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  STRETTO_FORWARD(cudnn, cudnnBackendDestroyDescriptor, descriptor);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  STRETTO_FORWARD(cudnn, cudnnBackendFinalize, descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  STRETTO_FORWARD(cudnn, cudnnBackendSetAttribute, descriptor, attribute, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* elements) {
  STRETTO_FORWARD(cudnn, cudnnBackendGetAttribute, descriptor, attribute, type, wanted, count, elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pointers) {
  STRETTO_FORWARD(cudnn, cudnnBackendExecute, handle, plan, pointers);
}

cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t pointers, cudaGraph_t graph) {
  STRETTO_FORWARD(cudnn, cudnnBackendPopulateCudaGraph, handle, plan, pointers, graph);
}

cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t pointers, cudaGraph_t graph) {
  STRETTO_FORWARD(cudnn, cudnnBackendUpdateCudaGraph, handle, plan, pointers, graph);
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                               const char* const* texts, const char* const* names) {
  STRETTO_FORWARD(nvrtc, nvrtcCreateProgram, program, source, name, headers, texts, names);
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) { STRETTO_FORWARD(nvrtc, nvrtcDestroyProgram, program); }

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  STRETTO_FORWARD(nvrtc, nvrtcCompileProgram, program, count, options);
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  STRETTO_FORWARD(nvrtc, nvrtcGetCUBINSize, program, size);
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) { STRETTO_FORWARD(nvrtc, nvrtcGetCUBIN, program, cubin); }

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  STRETTO_FORWARD(nvrtc, nvrtcGetProgramLogSize, program, size);
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) { STRETTO_FORWARD(nvrtc, nvrtcGetProgramLog, program, log); }
