//! Conversions to and from the tensors of other crates.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "ndarray")]
mod ndarray_arrays {
    use dtensor_local::{DType, LocalError, Tensor, bf16};
    use ndarray::{Array2, Array3, ArrayD, ArrayViewD, Axis, IxDyn, arr0, array, s};

    #[test]
    fn an_owned_array_in_order_is_taken_over_without_a_copy() {
        let array = Array2::from_shape_fn((3, 4), |(i, j)| (i * 10 + j) as f32);
        let address = array.as_ptr();
        let tensor = Tensor::try_from(array).unwrap();
        assert_eq!(tensor.shape(), [3, 4]);
        assert_eq!(tensor.as_slice::<f32>().unwrap().as_ptr(), address);
        assert_eq!(tensor.to_vec::<f32>().unwrap()[5], 11.0);
    }

    #[test]
    fn arrays_of_any_order_come_with_their_elements_in_theirs() {
        let array = Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 100 + j * 10 + k) as i64);
        let want = array.clone().permuted_axes([2, 0, 1]);
        let elements: Vec<i64> = want.iter().copied().collect();
        let tensor = Tensor::try_from(want).unwrap();
        assert_eq!((tensor.shape(), tensor.to_vec::<i64>().unwrap()), (&[4, 2, 3][..], elements));
        let mut reversed = array.clone();
        reversed.invert_axis(Axis(1));
        let elements: Vec<i64> = reversed.iter().copied().collect();
        assert_eq!(Tensor::try_from(reversed).unwrap().to_vec::<i64>().unwrap(), elements);
        // What is left of a larger array begins within its memory.
        let part = array.clone().slice_move(s![1.., .., ..]);
        let elements: Vec<i64> = part.iter().copied().collect();
        assert_eq!(Tensor::try_from(part).unwrap().to_vec::<i64>().unwrap(), elements);
        let view = array.slice(s![.., 1.., ..;2]);
        let elements: Vec<i64> = view.iter().copied().collect();
        let tensor = Tensor::try_from(view).unwrap();
        assert_eq!((tensor.shape(), tensor.to_vec::<i64>().unwrap()), (&[2, 2, 2][..], elements));
        assert!(Tensor::try_from(arr0(true)).unwrap().item::<bool>().unwrap());
        let empty = Tensor::try_from(Array2::<u8>::zeros((0, 3))).unwrap();
        assert_eq!((empty.shape(), empty.dtype()), (&[0, 3][..], DType::U8));
    }

    #[test]
    fn tensors_become_arrays_by_copy_and_views_by_borrowing() {
        let tensor = Tensor::from_vec(vec![1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
        let transposed = tensor.transpose(0, 1).unwrap();
        let array = ArrayD::<f64>::try_from(&transposed).unwrap();
        assert_eq!(array, array![[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]].into_dyn());
        let view = ArrayViewD::<f64>::try_from(&tensor).unwrap();
        assert_eq!(view.as_ptr(), tensor.as_slice::<f64>().unwrap().as_ptr());
        assert_eq!(view[IxDyn(&[1, 0])], 4.0);
        let error = ArrayViewD::<f64>::try_from(&transposed).unwrap_err();
        assert!(matches!(error, LocalError::NotContiguous { .. }), "{error}");
        let error = ArrayD::<bf16>::try_from(&tensor).unwrap_err();
        assert!(matches!(error, LocalError::WrongDType { .. }), "{error}");
        let meta = Tensor::meta(&[2], DType::F64).unwrap();
        assert!(matches!(ArrayD::<f64>::try_from(&meta), Err(LocalError::Meta { .. })));
        let empty = Tensor::zeros(&[2, 0], DType::F32).unwrap();
        assert_eq!(ArrayD::<f32>::try_from(&empty).unwrap().shape(), [2, 0]);
    }
}

#[cfg(feature = "candle")]
mod candle_tensors {
    use candle_core::{DType as CandleDType, Device, Tensor as CandleTensor};
    use dtensor_local::{DType, LocalError, Tensor};

    #[test]
    fn tensors_go_to_candle_and_back_in_every_dtype_that_both_have() {
        let dtypes = [
            (DType::F32, CandleDType::F32),
            (DType::F64, CandleDType::F64),
            (DType::Bf16, CandleDType::BF16),
            (DType::F16, CandleDType::F16),
            (DType::I64, CandleDType::I64),
            (DType::I32, CandleDType::I32),
            (DType::U8, CandleDType::U8),
        ];
        for (dtype, candle) in dtypes {
            for shape in [&[2, 3][..], &[], &[2, 0], &[1, 4, 2]] {
                let values = (0..shape.iter().product()).map(|value| value as i64).collect();
                let ours = Tensor::from_vec(values, shape).unwrap().to_dtype(dtype).unwrap();
                let theirs = CandleTensor::try_from(&ours).unwrap();
                assert_eq!((theirs.dims(), theirs.dtype()), (shape, candle));
                let back = Tensor::try_from(&theirs).unwrap();
                assert_eq!((back.shape(), back.dtype()), (shape, dtype));
                let values = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                assert_eq!(values(&back), values(&ours));
            }
        }
    }

    #[test]
    fn views_of_both_sides_come_in_the_order_of_their_elements() {
        let ours = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
        let theirs = CandleTensor::try_from(&ours.transpose(0, 1).unwrap()).unwrap();
        let want = [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]];
        assert_eq!(theirs.to_vec2::<f32>().unwrap(), want);
        let back = Tensor::try_from(&theirs.t().unwrap()).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn what_the_other_side_does_not_have_is_an_error() {
        let truth = Tensor::full(&[2], true).unwrap();
        let error = CandleTensor::try_from(&truth).unwrap_err();
        assert_eq!(error, LocalError::UnsupportedDType { op: "to candle", dtype: DType::Bool });
        let meta = Tensor::meta(&[2], DType::F32).unwrap();
        assert!(matches!(CandleTensor::try_from(&meta), Err(LocalError::Meta { .. })));
        let theirs = CandleTensor::zeros((2, 2), CandleDType::U32, &Device::Cpu).unwrap();
        let error = Tensor::try_from(&theirs).unwrap_err();
        assert!(matches!(error, LocalError::Foreign { op: "from candle", .. }), "{error}");
    }
}
