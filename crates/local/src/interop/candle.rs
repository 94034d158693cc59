use candle_core::{DType as CandleDType, Device, Tensor as CandleTensor, WithDType};

use crate::{DType, Element, LocalError, Result, Tensor, bf16, f16};

/// Copies the elements, from whichever device. Dtypes that there are only there are an error.
impl TryFrom<&CandleTensor> for Tensor {
    type Error = LocalError;

    fn try_from(tensor: &CandleTensor) -> Result<Tensor> {
        match tensor.dtype() {
            CandleDType::F32 => from_candle::<f32>(tensor),
            CandleDType::F64 => from_candle::<f64>(tensor),
            CandleDType::BF16 => from_candle::<bf16>(tensor),
            CandleDType::F16 => from_candle::<f16>(tensor),
            CandleDType::I64 => from_candle::<i64>(tensor),
            CandleDType::I32 => from_candle::<i32>(tensor),
            CandleDType::U8 => from_candle::<u8>(tensor),
            other => Err(LocalError::Foreign {
                op: "from candle",
                why: format!(
                    "there is no dtype {}; convert with its to_dtype first",
                    other.as_str()
                ),
            }),
        }
    }
}

/// Copies the elements to the CPU. `bool`, which there is not there, is an error.
impl TryFrom<&Tensor> for CandleTensor {
    type Error = LocalError;

    fn try_from(tensor: &Tensor) -> Result<CandleTensor> {
        match tensor.dtype() {
            DType::F32 => to_candle::<f32>(tensor),
            DType::F64 => to_candle::<f64>(tensor),
            DType::Bf16 => to_candle::<bf16>(tensor),
            DType::F16 => to_candle::<f16>(tensor),
            DType::I64 => to_candle::<i64>(tensor),
            DType::I32 => to_candle::<i32>(tensor),
            DType::U8 => to_candle::<u8>(tensor),
            dtype => Err(LocalError::UnsupportedDType { op: TO_CANDLE, dtype }),
        }
    }
}

const TO_CANDLE: &str = "to candle";

fn from_candle<T: Element + WithDType>(tensor: &CandleTensor) -> Result<Tensor> {
    let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<T>());
    Tensor::from_vec(values.map_err(|error| foreign("from candle", &error))?, tensor.dims())
}

fn to_candle<T: Element + WithDType>(tensor: &Tensor) -> Result<CandleTensor> {
    let values = tensor.to_vec::<T>()?;
    CandleTensor::from_vec(values, tensor.shape(), &Device::Cpu)
        .map_err(|error| foreign(TO_CANDLE, &error))
}

fn foreign(op: &'static str, error: &candle_core::Error) -> LocalError {
    LocalError::Foreign { op, why: error.to_string() }
}
